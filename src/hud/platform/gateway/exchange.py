"""One HTTP exchange, spoken in plain ASGI: no framework stands between a model's stream and its reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive, Scope, Send

from hud.inference.dialects.codec import EVENTS, JSON
from hud.platform.access.identity import LOCAL, Identity

Headers = list[tuple[bytes, bytes]]


class ClientGoneError(Exception):
    """The client went away before its request was whole."""


class Exchange:
    """A request, and the answer that is being given to it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.status: int | None = None
        """The status that was sent; None while the answer has not begun."""
        self.ended = False
        self._receive = receive
        self._send = send

    @property
    def who(self) -> Identity:
        """Identity of the caller; without keys, the local team."""
        state = self.scope.get("state") or {}
        identity: Identity = state.get("identity", LOCAL)
        return identity

    def header(self, name: bytes) -> str | None:
        """Return a request header."""
        for key, value in self.scope["headers"]:
            if key == name:
                return str(value.decode("latin-1"))
        return None

    async def body(self) -> bytes:
        """Return the whole body. Raises `ClientGoneError` if it never comes."""
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
        """Send a whole JSON answer."""
        length = (b"content-length", str(len(body)).encode())
        await self.begin(status, [(b"content-type", JSON), length, *(headers or [])])
        await self.end(body)

    async def begin(self, status: int, headers: Headers) -> None:
        """Send the status and the headers."""
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def begin_events(self, content_type: bytes = EVENTS) -> None:
        """Begin a stream that nobody on the way may hold back."""
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
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part."""
        self.ended = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    @asynccontextmanager
    async def attended(self) -> AsyncIterator[None]:
        """Cancel the block as soon as the client goes away, and raise `ClientGoneError`, which ends it quietly."""
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
