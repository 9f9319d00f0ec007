"""Live pages: a stream of events by which a page learns that its content has changed, and loads it again.

A change is found by reading a revision, a small value that differs whenever the page would. Everybody who looks at the
same thing shares one reading, so that many open pages cost what one costs.
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
"""Between two readings: a page must show a change within a second."""
PING_SECONDS = 15.0
"""So often something is sent, lest somebody between us and the browser takes the stream for dead."""
MOST_KEPT = 1_000


@dataclass(frozen=True)
class Revision:
    """A revision: a short value that changes whenever the page would."""

    value: str
    over: bool = False
    """True where it cannot change any more: the stream ends."""


Following = tuple[Hashable, Callable[[], Revision]]
"""A function that reads a revision, after the key of everything that it depends on."""


class Changes:
    """The revisions that are being followed."""

    def __init__(self, stopping: asyncio.Event) -> None:
        self._stopping = stopping
        self._known: dict[Hashable, tuple[float, asyncio.Future[Revision]]] = {}

    async def follow(
        self, key: Hashable, read: Callable[[], Revision], seen: str
    ) -> AsyncIterator[bytes]:
        """Yield `changed` whenever the revision is not what was `seen` last, and `over` at its end."""
        told = time.monotonic()
        while not self._stopping.is_set():
            revision = await self._read(key, read)
            if revision.value != seen:
                seen, told = revision.value, time.monotonic()
                yield _event("changed", seen)
            if revision.over:
                yield _event("over", seen)
                return
            if time.monotonic() - told > PING_SECONDS:
                told = time.monotonic()
                yield b": still here\n\n"
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), EVERY_SECONDS)

    async def _read(self, key: Hashable, read: Callable[[], Revision]) -> Revision:
        now = time.monotonic()
        known = self._known.get(key)
        # A little less than a period: who reads alone must not find its own last reading.
        if known is None or known[0] < now - EVERY_SECONDS * 0.8:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            known = now, asyncio.ensure_future(asyncio.to_thread(read))
            self._known[key] = known
        # Shielded: who goes away must not take the reading from the others.
        return await asyncio.shield(known[1])


def changes(
    request: Request, key: Hashable, read: Callable[[], Revision], seen: str
) -> StreamingResponse:
    """Answer with server-sent events whenever what `read` returns has changed, until the browser goes away."""
    following: Changes = request.app.state.changes
    events = following.follow(key, read, seen)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()
