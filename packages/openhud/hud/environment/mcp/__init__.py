"""MCP servers as parts of an environment, and environments as MCP servers.

`connected_server` declares a server; the official package is imported by the first run that needs it.
"""

from hud.environment.mcp.connected_server import ConnectedServer, OpenServer

__all__ = ["ConnectedServer", "OpenServer"]
