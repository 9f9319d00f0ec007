"""Server-sent events as they come in: the data of each, whatever pieces the network made of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

MOST_EVENT_BYTES = 16 << 20


async def data_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of each event; names, ids and comments are left out."""
    rest = b""
    lines: list[bytes] = []
    async for piece in pieces:
        rest += piece
        if len(rest) > MOST_EVENT_BYTES:
            raise ValueError(f"An event is larger than {MOST_EVENT_BYTES >> 20} MiB.")
        *whole, rest = rest.split(b"\n")
        for line in whole:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
            elif not line and lines:
                yield b"\n".join(lines)
                lines = []
    if rest.startswith(b"data:"):
        lines.append(rest[5:].strip())
    if lines:
        yield b"\n".join(lines)
