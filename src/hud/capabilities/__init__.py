"""Capabilities: what an environment lets an agent reach directly (a shell, a browser, a screen, an MCP server).

`Capability` says what it is and where; a `CapabilityClient` speaks its protocol. Clients load when they are first
used: each brings its protocol's library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.capabilities.capability import Capability, CapabilityClient
from hud.lazy import lazy

if TYPE_CHECKING:
    from hud.capabilities.browser.cdp import CDPClient
    from hud.capabilities.desktop.rfb import RFBClient
    from hud.capabilities.mcp import MCPClient
    from hud.capabilities.shell.ssh import SSHClient

__all__ = ["CDPClient", "Capability", "CapabilityClient", "MCPClient", "RFBClient", "SSHClient"]

__getattr__ = lazy(
    __name__,
    {
        "CDPClient": ".browser.cdp",
        "MCPClient": ".mcp",
        "RFBClient": ".desktop.rfb",
        "SSHClient": ".shell.ssh",
    },
)
