"""Recipes of agent programs: how each is started for a run of `hud eval` and `hud train`."""
