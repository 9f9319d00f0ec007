"""Commands of `hud fleet ray`."""
