"""Live pages: server-sent events notify a page that its content has changed, so that it reloads the content.
A change is detected by polling a revision, a small value that changes with the content. Streams with the same key share
one read, so that many open pages cost as much as one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import StreamingResponse

EVERY_SECONDS = 0.4
"""Polling interval: a page must show a change within a second."""
PING_SECONDS = 15.0
"""Keep-alive interval: proxies close idle streams."""
MOST_KEPT = 1_000


@dataclass(frozen=True)
class Revision:
    """Revision: a short value that changes whenever the page's content does."""

    value: str
    over: bool = False
    """True if it cannot change any more: the stream ends."""


Following = tuple[Hashable, Callable[[], Revision]]
"""Key of a revision, unique for its inputs, and a function that reads it."""


class Changes:
    """Revisions with open streams."""

    def __init__(self, stopping: asyncio.Event) -> None:
        self._stopping = stopping
        self._known: dict[Hashable, tuple[float, asyncio.Future[Revision]]] = {}

    async def follow(
        self, key: Hashable, read: Callable[[], Revision], seen: str
    ) -> AsyncIterator[bytes]:
        """Yield `changed` when the revision differs from the last one, at first from `seen`; yield `over` at the end."""
        sent_at = time.monotonic()
        while not self._stopping.is_set():
            revision = await self._read(key, read)
            if revision.value != seen:
                seen, sent_at = revision.value, time.monotonic()
                yield _event("changed", seen)
            if revision.over:
                yield _event("over", seen)
                return
            if time.monotonic() - sent_at > PING_SECONDS:
                sent_at = time.monotonic()
                yield b": still here\n\n"
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), EVERY_SECONDS)

    async def _read(self, key: Hashable, read: Callable[[], Revision]) -> Revision:
        now = time.monotonic()
        cached = self._known.get(key)
        # Slightly less than the interval: a single stream must not get its own previous read.
        if cached is None or cached[0] < now - EVERY_SECONDS * 0.8:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            cached = now, asyncio.ensure_future(asyncio.to_thread(read))
            self._known[key] = cached
        # Shielded: a stream that is closed must not cancel the read for others.
        return await asyncio.shield(cached[1])


def changes(
    request: Request, key: Hashable, read: Callable[[], Revision], seen: str
) -> StreamingResponse:
    """Respond with server-sent events for changes of the revision, until the browser disconnects."""
    following: Changes = request.app.state.changes
    events = following.follow(key, read, seen)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()
