"""The client side of the Model Context Protocol, over the official `mcp` package.

`MCPClient` is what an agent connects to a capability with; `Link` is one connection to any server, which an
environment's own servers use too.
"""

from hud.capabilities.mcp.client import MCPClient
from hud.capabilities.mcp.link import Answered, Link

__all__ = ["Answered", "Link", "MCPClient"]
