"""Two streams made one: what either says, the other hears."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter

_CHUNK = 1 << 16


async def splice(
    one: tuple[StreamReader, StreamWriter], other: tuple[StreamReader, StreamWriter]
) -> None:
    """Carry bytes both ways until both have said everything, or either breaks. The writers stay the caller's.

    A side that has said everything may still listen: the other one is told that nothing more will come.
    """
    ways = [
        asyncio.create_task(_carry(one[0], other[1])),
        asyncio.create_task(_carry(other[0], one[1])),
    ]
    try:
        await asyncio.gather(*ways)
    except OSError:
        pass  # One of them is gone; what was still to be said has no hearer.
    finally:
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)


async def _carry(reader: StreamReader, writer: StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
    with contextlib.suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()
