"""Capabilities: services of an environment that agents connect to (a shell, a browser, a screen, an MCP server).

`Capability` holds protocol and address; a `CapabilityClient` implements the protocol. Clients are imported at first use,
with their protocol's library.
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
