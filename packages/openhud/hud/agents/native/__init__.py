"""Tools of the agent's side, over the environment's capabilities: a shell, an editor, a computer."""
