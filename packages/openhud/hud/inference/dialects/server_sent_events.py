"""Server-sent events, read from the chunks of a stream or from a whole body."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from hud import exact_json
from hud.inference.retries import BrokenAnswer, answered_error, error_in

MOST_EVENT_BYTES = 16 << 20
DONE = b"[DONE]"
"""Data of the last event of a stream of chat completions."""


class EventTooLargeError(ValueError):
    """An event exceeds `MOST_EVENT_BYTES`."""


async def data_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of each event, without names, ids and comments. Raises `EventTooLargeError`."""
    rest = bytearray()
    lines: list[bytes] = []
    held = 0
    async for piece in pieces:
        rest += piece
        if held + len(rest) > MOST_EVENT_BYTES:
            raise EventTooLargeError(f"An event is larger than {MOST_EVENT_BYTES >> 20} MiB.")
        if b"\n" not in piece:
            continue  # A long line in small pieces is split once.
        *complete, last = bytes(rest).split(b"\n")
        rest = bytearray(last)
        for line in complete:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
                held += len(line)
            elif not line and lines:
                yield b"\n".join(lines)
                lines, held = [], 0
    if rest.startswith(b"data:"):
        lines.append(bytes(rest[5:].strip()))
    if lines:
        yield b"\n".join(lines)


def is_stream(body: bytes) -> bool:
    """Return True if a body begins as a stream of events, whatever its content type."""
    return body.lstrip().startswith((b"data:", b"event:", b":"))


def events_in(body: bytes, done: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the JSON objects in the events of a whole body, with `done` in place of the event `[DONE]`.

    Raises `BrokenAnswer` for a truncated event, and `AnsweredError` for an error event.
    """
    events = []
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        data = b"\n".join(
            line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")
        )
        if data.strip() == DONE and done is not None:
            events.append(done)
        if not data or data.strip() == DONE:
            continue
        try:
            event = exact_json.loads(data)
        except exact_json.JSONDecodeError:
            raise BrokenAnswer("broke its stream off in the middle of an event") from None
        if isinstance(event, dict):
            error = error_in(event)
            if error is not None:
                raise answered_error(error)
            events.append(event)
    return events
