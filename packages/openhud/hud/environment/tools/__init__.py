"""Tools: Python functions and subagents as tools, the schemas of their arguments, and their results."""
