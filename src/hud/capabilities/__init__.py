"""Capabilities: what an environment lets an agent reach directly (a shell, a browser, a screen, an MCP server).

`Capability` says what it is and where; a `CapabilityClient` speaks its protocol. Clients load when they are first
used: each brings its protocol's library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hud.capabilities.capability import Capability, CapabilityClient

if TYPE_CHECKING:
    from hud.capabilities.browser.cdp import CDPClient
    from hud.capabilities.desktop.rfb import RFBClient
    from hud.capabilities.mcp import MCPClient
    from hud.capabilities.shell.ssh import SSHClient

__all__ = ["CDPClient", "Capability", "CapabilityClient", "MCPClient", "RFBClient", "SSHClient"]

_HOMES = {
    "CDPClient": "browser.cdp",
    "MCPClient": "mcp",
    "RFBClient": "desktop.rfb",
    "SSHClient": "shell.ssh",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"hud.capabilities.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'hud.capabilities' has no attribute {name!r}")
