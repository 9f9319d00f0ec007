"""The agent's side of the control channel."""
