"""The environment's tools as a capability: an MCP server for clients without `tools.call`.

One port serves every session of the process, each under its own path. It listens from the first `hello` that announces it;
the server's libraries are imported at the first connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import secrets
import socket
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hud.capabilities import Capability
from hud.environment.channel.server.sessions import Session, Sessions
from hud.errors import HudError

if TYPE_CHECKING:
    import uvicorn
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.types import ASGIApp, Receive, Scope, Send

NAME = "environment-tools"
"""Name of the capability, reserved: no environment uses it."""
_BACKLOG = 128
_CLOSE_SECONDS = 2.0
_logger = logging.getLogger("hud.environment")


class ToolsServer:
    """The tools of all sessions of an environment, on a local port."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        self._web: uvicorn.Server | None = None

    @cached_property
    def available(self) -> bool:
        """False if its libraries are not installed, which is logged once."""
        missing = [name for name in ("mcp", "uvicorn") if find_spec(name) is None]
        if missing:
            _logger.warning(
                "Environment %r: only OpenHUD's own client gets its tools; for others: pip install "
                "'openhud[environments]'.",
                self.sessions.environment.name,
            )
        return not missing

    def capability(self, session: Session) -> Capability:
        """Return the capability of a session's tools."""
        if self._socket is None:
            self._socket = self._listen()
        port = self._socket.getsockname()[1]
        url = f"http://127.0.0.1:{port}/{session.id}/mcp"
        return Capability.mcp(NAME, url=url, transport="streamable-http", auth_token=session.token)

    async def close(self) -> None:
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        if self._web is not None:
            self._web.should_exit = self._web.force_exit = True
        if self._serving is not None:
            await asyncio.wait({self._serving}, timeout=_CLOSE_SECONDS)
            self._serving.cancel()
            await asyncio.wait({self._serving})
        self._socket.close()
        self._socket = None

    def _listen(self) -> socket.socket:
        listening = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        listening.setblocking(False)
        asyncio.get_running_loop().add_reader(listening, self._begin, listening)
        return listening

    def _begin(self, listening: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(listening)
        self._serving = asyncio.create_task(self._serve(listening))

    async def _serve(self, listening: socket.socket) -> None:
        # In a thread: importing must not block other sessions and their heartbeats.
        await asyncio.to_thread(importlib.import_module, "mcp.server.streamable_http_manager")
        manager = _manager(self.sessions)
        self._web = _web(_guarded(self.sessions, manager))
        async with manager.run():
            await self._web.serve(sockets=[listening])


def _manager(sessions: Sessions) -> StreamableHTTPSessionManager:
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from hud.environment.mcp.protocol_types import call_result, tool_of

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        del params
        run = await _session(sessions, context.request.url.path).open()
        return types.ListToolsResult(tools=[tool_of(spec) for spec in await run.list_tools()])

    async def call_tool(context: Any, params: Any) -> types.CallToolResult:
        run = await _session(sessions, context.request.url.path).open()
        outcome = await run.call_tool(params.name, params.arguments or {})
        return call_result(outcome.result)

    environment = sessions.environment
    server: Server[Any] = Server(
        environment.name,
        version=environment.version,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    return StreamableHTTPSessionManager(server, stateless=True)


def _guarded(sessions: Sessions, manager: StreamableHTTPSessionManager) -> ASGIApp:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if _may(sessions, scope):
            await manager.handle_request(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"This is another session's."})

    return application


def _web(application: ASGIApp) -> uvicorn.Server:
    import uvicorn

    config = uvicorn.Config(
        application, lifespan="off", log_level="warning", access_log=False, ws="none"
    )
    web = uvicorn.Server(config)
    # The environment's process handles signals.
    web.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
    return web


def _session(sessions: Sessions, path: str) -> Session:
    session = sessions.find(path.split("/")[1])
    if session is None:
        raise HudError("This session is over.")
    return session


def _may(sessions: Sessions, scope: Scope) -> bool:
    parts = scope["path"].split("/")
    session = sessions.find(parts[1]) if parts[2:] == ["mcp"] else None
    shown = dict(scope["headers"]).get(b"authorization", b"")
    return session is not None and secrets.compare_digest(
        shown, b"Bearer " + session.token.encode()
    )
