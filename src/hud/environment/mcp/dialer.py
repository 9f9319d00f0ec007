"""From a declared server to a connection: the one place of an environment that imports the official package."""

from __future__ import annotations

import inspect
from typing import Any

from mcp.server import Server
from mcp.server.mcpserver import MCPServer

from hud.capabilities.mcp import Link
from hud.capabilities.mcp.transports import Transport, dial_url
from hud.environment.mcp.config import ServerConfig
from hud.environment.mcp.connected_server import ConnectedServer, OpenedServer
from hud.environment.mcp.stdio import ServerProcess
from hud.errors import EnvironmentFault


def dialled(declared: ConnectedServer) -> OpenedServer:
    """Return the way to a server, not yet connected."""
    source = declared.source
    options: dict[str, Any] = {"start_seconds": declared.start_timeout}
    if not isinstance(source, ServerConfig):
        link = Link(
            declared.name,
            f"{type(source).__name__} in this process",
            lambda: _object(declared.name, source),
            reconnects=0,
            **options,
        )
        return OpenedServer(link)
    config = source.resolved(declared.name)
    if config.url is None:
        process = ServerProcess(declared.name, config)
        link = Link(
            declared.name,
            source.where,
            process.transport,
            reconnects=0,  # What it knew of the run went with it.
            why_ended=process.why_ended,
            **options,
        )
        return OpenedServer(link, process)
    url = config.url
    transport: Transport | None = None if config.transport == "stdio" else config.transport
    link = Link(
        declared.name,
        source.where,
        lambda: dial_url(url, config.headers, transport),
        reconnects=declared.reconnects,
        **options,
    )
    return OpenedServer(link)


def _object(name: str, source: Any) -> Any:
    """Return a server object: the one given, or a fresh one where a function makes them."""
    made = source if isinstance(source, MCPServer | Server) else source()
    if inspect.isawaitable(made) or not isinstance(made, MCPServer | Server):
        raise EnvironmentFault(
            f"what makes the MCP server {name!r} returned a {type(made).__name__}, not a server"
        )
    return made
