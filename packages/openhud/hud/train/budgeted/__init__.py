"""Commands within a budget that are judged on held-out tasks: their settings, their tasks, and what they may spend."""
