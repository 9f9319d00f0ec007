"""Two byte streams joined: what comes out of either goes into the other."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from contextlib import suppress

_PIECE_BYTES = 1 << 16

Stream = tuple[StreamReader, StreamWriter]


async def relay(one: Stream, other: Stream, *, idle_seconds: float | None = None) -> None:
    """Carry bytes both ways until both have ended, and close both.

    The end of one way is passed on, and the other way may still carry. A way that breaks, or carries nothing for
    `idle_seconds`, ends both.
    """
    try:
        await asyncio.gather(
            _carry(one[0], other[1], idle_seconds), _carry(other[0], one[1], idle_seconds)
        )
    finally:
        for _, writer in (one, other):
            writer.close()


async def _carry(reader: StreamReader, writer: StreamWriter, idle_seconds: float | None) -> None:
    try:
        while True:
            async with asyncio.timeout(idle_seconds):
                data = await reader.read(_PIECE_BYTES)
                if not data:
                    break
                writer.write(data)
                await writer.drain()
    except (OSError, TimeoutError):
        writer.transport.abort()  # The other way then comes to its end.
    else:
        with suppress(OSError):
            if writer.can_write_eof():
                writer.write_eof()
