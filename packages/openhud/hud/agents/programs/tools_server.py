"""MCP server of a run's tools, for a program that plays the run. Calls go through `run.call_tool`, which records them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from hud.errors import UsageError
from hud.trace import ToolCall

if TYPE_CHECKING:
    from mcp import types
    from mcp.server.context import ServerRequestContext
    from starlette.types import Receive, Scope, Send

    from hud.agents.agent import RunView

NAME = "environment"
"""Name of the server in the programs' settings."""
_HOST = "127.0.0.1"

T = TypeVar("T")


class ToolsServer:
    """Server of one run."""

    def __init__(self, run: RunView, timeout: float | None) -> None:
        self.run, self.timeout = run, timeout
        self.path = f"/{secrets.token_urlsafe(16)}/mcp"
        """Path of its address; it is the secret that admits a client."""
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Failure of a call that ends the run."""
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}{self.path}"

    async def list_tools(
        self, context: ServerRequestContext[Any], params: object
    ) -> types.ListToolsResult:
        del context, params
        from mcp import types

        from hud.environment.mcp.protocol_types import tool_of

        return types.ListToolsResult(tools=[tool_of(spec) for spec in self.run.tools])

    async def call_tool(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        del context
        from hud.environment.mcp.protocol_types import call_result, refused

        call = ToolCall(name=params.name, arguments=params.arguments or {})
        try:
            result = await self.run.call_tool(call, timeout=self.timeout)
        except Exception as error:
            if not self.failure.done():
                self.failure.set_exception(error)
            return refused("The run has ended.")
        return call_result(result)


@asynccontextmanager
async def serve_tools(run: RunView, timeout: float | None) -> AsyncIterator[ToolsServer | None]:
    """Serve the tools of `run` on this machine's loopback, if it has any; `timeout` limits each call, in seconds.

    Raises `UsageError` without the packages of a server.
    """
    if not run.tools:
        yield None
        return
    try:
        import uvicorn
        from mcp.server import Server
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Programs that play tasks with tools need the package {error.name!r}: pip install 'openhud[environments]'."
        ) from None
    tools = ToolsServer(run, timeout)
    server: Server[Any] = Server(NAME, on_list_tools=tools.list_tools, on_call_tool=tools.call_tool)
    manager = StreamableHTTPSessionManager(server, stateless=True)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if secrets.compare_digest(scope["path"].encode(), tools.path.encode()):
            await manager.handle_request(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"There is no such run."})

    web = uvicorn.Server(
        uvicorn.Config(
            application, lifespan="off", log_level="warning", access_log=False, ws="none"
        )
    )
    # The command that plays the run handles signals.
    web.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
    with socket.create_server((_HOST, 0), backlog=128) as listener:
        tools.port = listener.getsockname()[1]

        async def serve() -> None:
            async with manager.run():
                await web.serve(sockets=[listener])

        serving = asyncio.create_task(serve())
        try:
            yield tools
        finally:
            web.should_exit = web.force_exit = True
            await serving
            tools.failure.cancel()


async def unless_failed(work: Coroutine[Any, Any, T], tools: ToolsServer | None) -> T:
    """Return the result of `work`; a failure of a tool that ends the run is raised, and cancels it."""
    task = asyncio.ensure_future(work)
    waited: list[asyncio.Future[Any]] = [task] if tools is None else [task, tools.failure]
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if tools is not None and tools.failure.done():
            tools.failure.result()
        return await task
    finally:
        task.cancel()
        await asyncio.wait([task])
