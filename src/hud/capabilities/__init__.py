"""Capabilities: what an environment lets an agent reach directly (a shell, a browser, a screen, an MCP server).

`Capability` says what it is and where; a `CapabilityClient` speaks its protocol.
"""

from hud.capabilities.capability import Capability, CapabilityClient

__all__ = ["Capability", "CapabilityClient"]
