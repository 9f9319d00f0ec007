"""`hud models`: models, their checkpoints and heads."""
