"""MCP servers as parts of an environment, and environments as MCP servers.

`connected_server` declares a server; nothing here imports the official package before a run needs it.
"""

from hud.environment.mcp.connected_server import ConnectedServer, OpenServer

__all__ = ["ConnectedServer", "OpenServer"]
