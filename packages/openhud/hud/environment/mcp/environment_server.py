"""`EnvironmentServer`: an environment as an MCP server, over streamable HTTP or standard input and output.

Its tools are the server's tools, its templates the server's prompts. Each client session has its own run. The caller opens
and replaces runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import MCPError, types
from mcp.server import NotificationOptions, Server
from mcp.server.connection import Connection as ClientConnection
from mcp.server.context import ServerRequestContext
from mcp.server.models import InitializationOptions
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS as HANDSHAKE_VERSIONS
from starlette.applications import Starlette

from hud.environment.connection import Connection
from hud.environment.mcp.client_runs import OpenRun, Runs
from hud.environment.mcp.protocol_types import (
    call_result,
    prompt_of,
    prompted,
    refused,
    tool_of,
    typed,
)
from hud.errors import HudError, RolloutError, UsageError
from hud.trace import ToolSpec

_Context = ServerRequestContext[Any]
_TELL_SECONDS = 2.0
_ANYBODY = ""
"""Client id of connections without a session, such as standard input; they share a run."""


class EnvironmentServer:
    """Server of an environment's runs; `open_run` opens them."""

    def __init__(self, open_run: OpenRun, *, name: str, version: str) -> None:
        self.runs = Runs(open_run)
        self._clients: weakref.WeakSet[ClientConnection] = weakref.WeakSet()
        self._bus = InMemorySubscriptionBus()
        self._server = _Server(
            name,
            version=version,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_subscriptions_listen=ListenHandler(self._bus),
        )

    def application(self, host: str) -> Starlette:
        """Return a web application that serves it at `/mcp`, for requests with that `Host`."""
        return self._server.streamable_http_app(host=host)

    async def serve_stdio(self) -> None:
        """Serve a client on this process's standard input and output, until it disconnects."""
        async with stdio_server() as (read, write):
            await self._server.run(read, write, self._server.create_initialization_options())

    async def renew(self) -> None:
        """Open a new run at each session's next request, and send change notifications to clients."""
        await self.runs.renew()
        notifications = [asyncio.create_task(_tell(client)) for client in self._clients]
        if notifications:
            await asyncio.wait(notifications)
        await self._bus.publish(ToolsListChanged())
        await self._bus.publish(PromptsListChanged())

    async def close(self) -> None:
        await self.runs.close()

    @asynccontextmanager
    async def _run(self, context: _Context) -> AsyncIterator[Connection]:
        # The official package passes this type to handlers, but does not export it.
        client = context.session._connection
        key = client.session_id or _ANYBODY
        # Clients of later protocol versions subscribe to changes.
        stays = client.has_standalone_channel and client.protocol_version in HANDSHAKE_VERSIONS
        if stays and client not in self._clients:
            self._clients.add(client)
            if key is not _ANYBODY:
                client.exit_stack.push_async_callback(self.runs.leave, key)
        try:
            async with self.runs.of(key) as run:
                yield run
        except HudError as error:
            wrong = isinstance(error, UsageError) and not isinstance(error, RolloutError)
            code = types.INVALID_PARAMS if wrong else types.INTERNAL_ERROR
            raise MCPError(code, str(error)) from error

    async def _list_tools(self, context: _Context, params: object) -> types.ListToolsResult:
        del params
        async with self._run(context) as run:
            specs: list[ToolSpec] = await run.list_tools()
        return types.ListToolsResult(tools=[tool_of(spec) for spec in specs])

    async def _call_tool(
        self, context: _Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            async with self._run(context) as run:
                outcome = await run.call_tool(params.name, params.arguments or {})
        except MCPError as error:
            return refused(error.message)
        if "tools" in outcome.observed:
            client = context.session._connection
            if client in self._clients:
                await client.send_tool_list_changed()
            await self._bus.publish(ToolsListChanged())
        return call_result(outcome.result)

    async def _list_prompts(self, context: _Context, params: object) -> types.ListPromptsResult:
        del params
        async with self._run(context) as run:
            rows = await run.list_tasks()
        return types.ListPromptsResult(prompts=[prompt_of(row) for row in rows])

    async def _get_prompt(
        self, context: _Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        async with self._run(context) as run:
            rows = {row["id"]: row for row in await run.list_tasks()}
            arguments = typed(rows.get(params.name, {}), params.arguments or {})
            frame = await run.start(params.name, arguments)
        return prompted(frame.prompt)


class _Server(Server[Any]):
    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Add the capabilities of changing tools and prompts."""
        changing = NotificationOptions(tools_changed=True, prompts_changed=True)
        return super().create_initialization_options(
            notification_options or changing, experimental_capabilities, extensions
        )


async def _tell(client: ClientConnection) -> None:
    """Send change notifications to a client; errors are ignored."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_TELL_SECONDS):
            await client.send_tool_list_changed()
            await client.send_prompt_list_changed()
