"""A session with an MCP server, held by its own task from handshake to close.

The official client must be closed in the task that opened it, but runs are opened and closed in different tasks.
Reconnection is the `Link`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import httpx2
from mcp import Client, MCPError, types
from mcp.client.subscriptions import SubscriptionLost
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from hud import __version__
from hud.errors import HudError

Dial = Callable[[], Any]
"""Factory of the official client's target: a transport, or a server object."""

_MOST_PAGES = 100
_TURNS = 4
_CAUSE_SECONDS = 0.2
_PATIENCE_SECONDS = 5.0
"""Time-out for the updated tool list after a call changed it, in seconds."""


class ServerLost(Exception):
    """The session ended; `unsent` is True if the request was certainly not executed."""

    def __init__(self, reason: str, *, unsent: bool = False) -> None:
        super().__init__(reason)
        self.unsent = unsent


class Session:
    """A session, usable from the return of `open` until `close` or until the connection is lost."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self.tools: dict[str, types.Tool] = {}
        """The server's tools by name, updated when the server's list changes."""
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._fresh = asyncio.Event()
        self._fresh.set()
        self._leaving = False
        self._cause: BaseException | None = None

    async def open(self, seconds: float) -> None:
        """Connect and list the tools. Raises the connection's error, or `TimeoutError`."""
        try:
            await self._open("legacy", seconds)
        except MCPError as error:
            if error.code not in (types.UNSUPPORTED_PROTOCOL_VERSION, types.METHOD_NOT_FOUND):
                raise
            # A server that supports only versions without a handshake. All others support the older handshake.
            await self._open("auto", seconds)

    async def _open(self, mode: str, seconds: float) -> None:
        up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(mode, up), name="hud-mcp-session")
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(up)
        except BaseException:
            up.cancel()
            await self.close()
            raise

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        if self._client is None:
            task.cancel()  # Not open yet, or closed.
        self._leaving = True
        self._news.set()
        try:
            await asyncio.shield(asyncio.wait({task}))
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise

    async def call(
        self, name: str, arguments: dict[str, Any], seconds: float
    ) -> types.CallToolResult:
        """Call a tool. Raises `TimeoutError`, `ServerLost`, or `MCPError` for a refused call."""
        client = self._connected()
        async with self._told():
            result = await client.call_tool(name, arguments, read_timeout_seconds=seconds)
        for _ in range(_TURNS):
            await asyncio.sleep(0)  # Notifications before the result may still be in processing.
        if not self._fresh.is_set():
            # The call changed the list of tools: wait for the new list before returning the result.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await self._fresh.wait()
        return result

    async def read(self, uri: str) -> types.ReadResourceResult:
        """Read a resource. Raises as `call` does."""
        client = self._connected()
        async with self._told():
            return await client.read_resource(uri)

    def _connected(self) -> Client:
        if self._client is None:
            raise ServerLost(reason(self._cause), unsent=True)
        return self._client

    @contextlib.asynccontextmanager
    async def _told(self) -> AsyncIterator[None]:
        """Convert a lost connection's errors within a request to `ServerLost`."""
        try:
            yield
        except MCPError as error:
            if error.code == types.REQUEST_TIMEOUT:
                raise TimeoutError from None
            if error.code == types.INVALID_REQUEST and error.message == "Session terminated":
                raise ServerLost(
                    "the server does not know the session any more", unsent=True
                ) from None
            closed = error.message == "Connection closed" or error.message.startswith("SSE stream")
            if error.code == types.CONNECTION_CLOSED and closed:
                raise await self._lost() from None
            raise
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise await self._lost() from None

    async def _lost(self) -> ServerLost:
        """Return the reason why the session was lost, after the failed transport has closed."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_CAUSE_SECONDS)
        if self._cause is None:
            return ServerLost("it closed the connection")
        return ServerLost(reason(self._cause), unsent=isinstance(self._cause, httpx2.ConnectError))

    async def _live(self, mode: str, up: asyncio.Future[None]) -> None:
        try:
            async with Client(
                self._dial(),
                mode=mode,
                cache=None,
                message_handler=self._hear,
                client_info=types.Implementation(name="openhud", version=__version__),
            ) as client:
                await self._list(client)
                self._client = client
                if not up.done():
                    up.set_result(None)
                await self._follow(client)
        except BaseException as error:
            self._cause = _first(error)
            if not up.done():
                up.set_exception(self._cause)
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise
        finally:
            self._client = None
            self._fresh.set()

    async def _follow(self, client: Client) -> None:
        """List the tools again at each change notification, until the session ends."""
        listening: asyncio.Task[None] | None = None
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            listening = asyncio.create_task(self._listen(client))
        try:
            while True:
                await self._news.wait()
                if self._leaving:
                    return
                self._fresh.clear()
                self._news.clear()
                with contextlib.suppress(MCPError):
                    await self._list(client)
                self._fresh.set()
        finally:
            if listening is not None:
                listening.cancel()
                await asyncio.wait({listening})

    async def _list(self, client: Client) -> None:
        tools: dict[str, types.Tool] = {}
        cursor: str | None = None
        if client.server_capabilities.tools is not None:
            for _ in range(_MOST_PAGES):
                page = await client.list_tools(cursor=cursor)
                tools.update((tool.name, tool) for tool in page.tools)
                cursor = page.next_cursor
                if cursor is None:
                    break
        self.tools = tools

    async def _hear(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed()

    async def _listen(self, client: Client) -> None:
        """Subscribe to change notifications of a server that requires it."""
        with contextlib.suppress(SubscriptionLost, MCPError, TimeoutError):
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._changed()

    def _changed(self) -> None:
        self._fresh.clear()
        self._news.set()


def reason(cause: BaseException | None) -> str:
    """Return a description of why a session ended."""
    if cause is None or isinstance(cause, asyncio.CancelledError):
        return "the session is over"
    if isinstance(cause, HudError):
        return str(cause)
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__


def _first(error: BaseException) -> BaseException:
    """Return the innermost single error of nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
