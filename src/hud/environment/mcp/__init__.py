"""MCP servers as parts of an environment, and environments as MCP servers.

`connect_mcp` and `connect_mcp_config` of an `Environment` are in `declaring`; nothing here imports the official
package before a run needs it.
"""

from hud.environment.mcp.connected_server import ConnectedServer, OpenServer

__all__ = ["ConnectedServer", "OpenServer"]
