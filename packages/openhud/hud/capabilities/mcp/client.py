"""`MCPClient`: the client of an environment's MCP server."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from hud.capabilities.capability import MCP, Capability, CapabilityClient
from hud.capabilities.mcp.link import CALL_SECONDS, Link
from hud.capabilities.mcp.results import spec_of
from hud.capabilities.mcp.transports import Transport, dial_url
from hud.trace import ToolResult, ToolSpec


class MCPClient(CapabilityClient):
    """A connection to an MCP server; its tools are listed and called like those of an environment."""

    protocol: ClassVar[str] = MCP

    def __init__(self, link: Link) -> None:
        self._link = link

    @classmethod
    async def connect(cls, capability: Capability) -> Self:
        """Connect over `params["transport"]`, with `params["auth_token"]` if set."""
        token = capability.params.get("auth_token")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transport: Transport | None = capability.params.get("transport")
        link = Link(
            capability.name,
            capability.url,
            lambda: dial_url(capability.url, headers, transport),
        )
        await link.open()
        return cls(link)

    async def list_tools(self) -> list[ToolSpec]:
        """Return the server's latest list of tools."""
        return [spec_of(tool) for tool in self._link.tools.values()]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], *, timeout: float | None = None
    ) -> ToolResult:
        """Call a tool; failures are error results. `timeout` is in seconds."""
        answered = await self._link.call(
            name, arguments, CALL_SECONDS if timeout is None else timeout
        )
        return answered.result

    async def close(self) -> None:
        await self._link.close()
