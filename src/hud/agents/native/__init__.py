"""Tools that work on the agent's side, over what its environment offers: a shell, an editor, a computer."""
