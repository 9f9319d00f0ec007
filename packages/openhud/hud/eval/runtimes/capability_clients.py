"""The capability clients of a run: connected at first use, closed together."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from hud import capabilities
from hud.capabilities import capability as protocols
from hud.errors import NotFoundError

if TYPE_CHECKING:
    from hud.capabilities import Capability, CapabilityClient
    from hud.environment.connection import Connection

_CLIENTS = {
    protocols.SSH: "SSHClient",
    protocols.MCP: "MCPClient",
    protocols.CDP: "CDPClient",
    protocols.RFB: "RFBClient",
}
"""Modules of `hud.capabilities`, imported at first use with their protocol's library."""


class OpenClients:
    """Clients of an environment's capabilities."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._clients: dict[str, CapabilityClient] = {}
        self._stack = AsyncExitStack()
        self._connecting = asyncio.Lock()

    async def open(self, reference: str) -> CapabilityClient:
        """Return the client of the capability of that name or protocol, connected."""
        capability = self._find(reference)
        async with self._connecting:
            client = self._clients.get(capability.name)
            if client is None:
                client = await connect_client(await self._connection.reach(capability))
                self._clients[capability.name] = client
                self._stack.push_async_callback(client.close)
        return client

    async def close(self) -> None:
        self._clients.clear()
        await self._stack.aclose()

    def _find(self, reference: str) -> Capability:
        offered = self._connection.capabilities
        for capability in offered:
            if reference in (
                capability.name,
                capability.protocol,
                capability.protocol.split("/")[0],
            ):
                return capability
        names = (
            ", ".join(f"{capability.name} ({capability.protocol})" for capability in offered)
            or "none"
        )
        raise NotFoundError(f"The environment offers no {reference!r} (it offers: {names}).")


async def connect_client(capability: Capability) -> CapabilityClient:
    """Connect a client to a capability. Raises `NotFoundError` for a protocol without one."""
    home = _CLIENTS.get(capability.protocol)
    if home is None:
        raise NotFoundError(
            f"{capability.name!r} speaks {capability.protocol}; there are clients for {', '.join(_CLIENTS)}."
        )
    kind: type[CapabilityClient] = getattr(capabilities, home)
    return await kind.connect(capability)
