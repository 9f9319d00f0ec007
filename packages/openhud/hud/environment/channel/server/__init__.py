"""The environment's side of the control channel."""
