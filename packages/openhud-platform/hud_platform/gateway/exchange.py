"""HTTP exchange in plain ASGI: a model's stream is sent without the overhead of a framework."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import asynccontextmanager

from starlette.types import Receive, Scope, Send

from hud.inference.dialects.codec import EVENTS, JSON
from hud_platform.access.identity import LOCAL, Identity

Headers = list[tuple[bytes, bytes]]
Observer = Callable[[bytes, bool], Awaitable[None]]


class ClientGoneError(Exception):
    """The client disconnected before its request or its response was complete."""


class Exchange:
    """An HTTP request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.status: int | None = None
        """HTTP status that was sent; None before the response has begun."""
        self.ended = False
        self.observer: Observer | None = None
        """Called with each part of the body before it is sent, and whether it is the last one."""
        self._receive = receive
        self._send = send

    @property
    def who(self) -> Identity:
        """Identity of the caller; on a platform without keys, the local team."""
        state = self.scope.get("state") or {}
        identity: Identity = state.get("identity", LOCAL)
        return identity

    def header(self, name: bytes) -> str | None:
        """Return a request header."""
        for key, value in self.scope["headers"]:
            if key == name:
                return str(value.decode("latin-1"))
        return None

    def headers(self, names: Set[bytes]) -> dict[str, str]:
        """Return the request headers among `names`."""
        sent = self.scope["headers"]
        return {key.decode(): value.decode("latin-1") for key, value in sent if key in names}

    async def body(self) -> bytes:
        """Return the whole body. Raises `ClientGoneError` if the client disconnects before its end."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        first: bytes = message.get("body", b"")
        if not message.get("more_body"):
            return first
        parts = [first]
        while message.get("more_body"):
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message.get("body", b""))
        return b"".join(parts)

    async def answer(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """Send a complete JSON response."""
        length = (b"content-length", str(len(body)).encode())
        await self.begin(status, [(b"content-type", JSON), length, *(headers or [])])
        await self.end(body)

    async def begin(self, status: int, headers: Headers) -> None:
        """Send the status and the headers. A status that HTTP has none for is a provider's: 502."""
        self.status = status = status if 200 <= status < 600 else 502
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def begin_events(self, content_type: bytes = EVENTS) -> None:
        """Begin a stream of events, with headers that disable buffering by proxies."""
        await self.begin(
            200,
            [
                (b"content-type", content_type),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
            ],
        )

    async def write(self, data: bytes) -> None:
        """Send a part of the body."""
        if self.observer is not None:
            await self.observer(data, False)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part."""
        if self.observer is not None:
            await self.observer(data, True)
        self.ended = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    @asynccontextmanager
    async def attended(self) -> AsyncIterator[None]:
        """Cancel the block when the client disconnects, and raise `ClientGoneError` in place of the cancellation."""
        task = asyncio.current_task()
        assert task is not None
        watcher = asyncio.create_task(self._gone())

        def stop(watcher: asyncio.Task[None]) -> None:
            if not watcher.cancelled() and not self.ended:
                task.cancel()

        watcher.add_done_callback(stop)
        try:
            yield
        except asyncio.CancelledError:
            if not watcher.done() or watcher.cancelled():
                raise
            task.uncancel()
            raise ClientGoneError from None
        finally:
            watcher.remove_done_callback(stop)
            watcher.cancel()

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
