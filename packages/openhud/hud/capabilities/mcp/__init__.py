"""The client side of the Model Context Protocol, over the official `mcp` package.

`MCPClient` is the client of a capability; `Link` is a connection to any MCP server, also used for an environment's own
servers.
"""

from hud.capabilities.mcp.client import MCPClient
from hud.capabilities.mcp.link import Answered, Link

__all__ = ["Answered", "Link", "MCPClient"]
