"""Commands of `hud`: the dashboard on this machine, human baselines, and the documentation over MCP."""
