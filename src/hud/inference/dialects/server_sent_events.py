"""Server-sent events as they come in: the data of each, whatever pieces the network made of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

MOST_EVENT_BYTES = 16 << 20


class EventTooLargeError(ValueError):
    """An event is larger than any that a provider means."""


async def data_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of each event; names, ids and comments are left out."""
    rest = b""
    lines: list[bytes] = []
    held = 0
    async for piece in pieces:
        rest += piece
        if held + len(rest) > MOST_EVENT_BYTES:
            raise EventTooLargeError(f"An event is larger than {MOST_EVENT_BYTES >> 20} MiB.")
        *whole, rest = rest.split(b"\n")
        for line in whole:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
                held += len(line)
            elif not line and lines:
                yield b"\n".join(lines)
                lines, held = [], 0
    if rest.startswith(b"data:"):
        lines.append(rest[5:].strip())
    if lines:
        yield b"\n".join(lines)
