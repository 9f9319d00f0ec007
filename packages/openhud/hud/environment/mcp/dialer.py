"""Connection of a declared server: the only module of environments that imports the official package."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from mcp.server import Server
from mcp.server.mcpserver import MCPServer

from hud.capabilities.mcp import Link
from hud.capabilities.mcp.session import Dial
from hud.capabilities.mcp.transports import Transport, dial_url
from hud.environment.mcp.config import ServerConfig
from hud.environment.mcp.connected_server import ConnectedServer, OpenedServer
from hud.environment.mcp.stdio import ServerProcess
from hud.errors import EnvironmentFault


def dialled(declared: ConnectedServer) -> OpenedServer:
    """Return the unconnected link to a server."""
    source = declared.source
    where = f"{type(source).__name__} in this process"
    process: ServerProcess | None = None
    reconnects = (
        0  # A program or an object lost the run's state with its connection: no reconnection.
    )
    dial: Dial = partial(_object, declared.name, source)
    if isinstance(source, ServerConfig):
        where = source.where
        config = source.resolved(declared.name)
        if config.url is None:
            process = ServerProcess(declared.name, config)
            dial = process.transport
        else:
            transport: Transport | None = None if config.transport == "stdio" else config.transport
            dial = partial(dial_url, config.url, config.headers, transport)
            reconnects = declared.reconnects
    link = Link(
        declared.name,
        where,
        dial,
        start_seconds=declared.start_timeout,
        reconnects=reconnects,
        why_ended=None if process is None else process.why_ended,
    )
    return OpenedServer(link, process)


def _object(name: str, source: Any) -> Any:
    """Return a server object: the given one, or a new one of the factory."""
    made = source if isinstance(source, MCPServer | Server) else source()
    if inspect.isawaitable(made) or not isinstance(made, MCPServer | Server):
        raise EnvironmentFault(
            f"what makes the MCP server {name!r} returned a {type(made).__name__}, not a server"
        )
    return made
