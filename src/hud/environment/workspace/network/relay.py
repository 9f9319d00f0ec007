"""Bytes between a connection from inside and one to the outside, both ways, until both sides are done."""

from __future__ import annotations

import asyncio
from contextlib import suppress

_PIECE_BYTES = 1 << 16
_IDLE_SECONDS = 600.0

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def relay(inside: Stream, outside: Stream) -> None:
    """Hand on what either side says; closes both."""
    try:
        await asyncio.gather(
            _one_way(inside[0], outside[1]), _one_way(outside[0], inside[1]), return_exceptions=True
        )
    finally:
        for _, writer in (inside, outside):
            writer.close()


async def _one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            async with asyncio.timeout(_IDLE_SECONDS):
                data = await reader.read(_PIECE_BYTES)
                if not data:
                    break
                writer.write(data)
                await writer.drain()
    except (OSError, TimeoutError):
        writer.transport.abort()
    else:
        with suppress(OSError):
            if writer.can_write_eof():
                writer.write_eof()
