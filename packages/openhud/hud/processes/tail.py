"""`Tail`: the end of a pipe's output, in bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TAIL_BYTES = 4000
CLOSE_SECONDS = 1.0
"""Time-out for the rest of a pipe, in seconds; a process outside the process group may hold it open."""


class Tail(asyncio.Protocol):
    """Reader of a pipe, to its end: a full pipe would block its writer."""

    def __init__(self, on_output: Callable[[bytes], None] | None = None) -> None:
        """`on_output` receives all of the output."""
        self._last = bytearray()
        self._closed = asyncio.Event()
        self._on_output = on_output

    def data_received(self, data: bytes) -> None:
        """Append output."""
        if self._on_output is not None:
            self._on_output(data)
        self._last += data[-TAIL_BYTES:]
        del self._last[:-TAIL_BYTES]

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the pipe's end."""
        self._closed.set()

    async def text(self) -> str:
        """Return the last `TAIL_BYTES` bytes of the output; waits for its end, but not longer than `CLOSE_SECONDS`."""
        closed = asyncio.ensure_future(self._closed.wait())
        await asyncio.wait({closed}, timeout=CLOSE_SECONDS)
        closed.cancel()
        return self._last.decode("utf-8", "replace")
