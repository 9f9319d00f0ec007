"""Commands of `hud`: the platform as a service."""
