"""Relay of two byte streams."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from contextlib import suppress

_PIECE_BYTES = 1 << 16

Stream = tuple[StreamReader, StreamWriter]


async def relay(first: Stream, second: Stream, *, idle_seconds: float | None = None) -> None:
    """Relay bytes in both directions until both have ended, and close both streams.

    The end of one direction is forwarded, while the other may continue. An error, or `idle_seconds` without a byte, ends
    both.
    """
    try:
        await asyncio.gather(
            _carry(first[0], second[1], idle_seconds), _carry(second[0], first[1], idle_seconds)
        )
    finally:
        for _, writer in (first, second):
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
        writer.transport.abort()  # The other direction then ends, too.
    else:
        with suppress(OSError):
            if writer.can_write_eof():
                writer.write_eof()
