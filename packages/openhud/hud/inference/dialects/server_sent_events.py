"""Server-sent events, read from the chunks of a stream or from a whole body."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

from hud import exact_json
from hud.inference.retries import BrokenAnswer, answered_error, error_in

MOST_EVENT_BYTES = 16 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DONE = b"[DONE]"
"""Data of the last event of a stream of chat completions."""
_LINE_END = re.compile(rb"\r\n|\n|\r")
ERROR = b"error"
"""Name of an event that is an error."""


class EventTooLargeError(ValueError):
    """An event exceeds `MOST_EVENT_BYTES`."""


async def data_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of each event, without names, ids and comments; of one named `error` as an error's object.

    Lines end with LF, CR, or both. Raises `EventTooLargeError`.
    """
    rest = bytearray()
    lines: list[bytes] = []
    held, named, first = 0, False, True
    async for piece in pieces:
        rest += piece
        if held + len(rest) > MOST_EVENT_BYTES:
            raise EventTooLargeError(f"An event is larger than {MOST_EVENT_BYTES >> 20} MiB.")
        if b"\n" not in piece and b"\r" not in piece:
            continue  # A long line in small pieces is split once.
        received = bytes(rest)
        # A CR at the end may be the first half of a line's end.
        end = b"\r" if received.endswith(b"\r") else b""
        *complete, last = _LINE_END.split(received[: len(received) - len(end)])
        rest = bytearray(last + end)
        for line in complete:
            if first:
                line, first = line.removeprefix(BYTE_ORDER_MARK), False
            if line.startswith(b"event:"):
                named = line[6:].strip().lower() == ERROR
            elif line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
                held += len(line)
            elif not line and lines:
                yield _data(lines, named)
                lines, held, named = [], 0, False
    if rest.startswith(b"data:"):
        lines.append(bytes(rest[5:].strip()))
    if lines:
        yield _data(lines, named)


def _data(lines: list[bytes], is_error: bool) -> bytes:
    """Return an event's data. That of an error is an object with the field `error`, whatever its form was."""
    data = b"\n".join(lines)
    if not is_error or not data:
        return data
    try:
        value = exact_json.loads(data)
    except exact_json.JSONDecodeError:
        value = data.decode("utf-8", "replace")
    if isinstance(value, dict) and error_in(value) is not None:
        return data
    return exact_json.dumps({"error": value or "(nothing)"})


def is_stream(body: bytes) -> bool:
    """Return True if a body begins as a stream of events, whatever its content type."""
    return (
        body.removeprefix(BYTE_ORDER_MARK)
        .lstrip()
        .startswith((b"data:", b"event:", b"id:", b"retry:", b":"))
    )


def events_in(body: bytes, done: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the JSON objects in the events of a whole body, with `done` in place of the event `[DONE]`.

    Raises `BrokenAnswer` for a truncated event, and `AnsweredError` for an error event.
    """
    events = []
    text = _LINE_END.sub(b"\n", body.removeprefix(BYTE_ORDER_MARK))
    for lines in (block.split(b"\n") for block in text.split(b"\n\n")):
        named = any(
            line.startswith(b"event:") and line[6:].strip().lower() == ERROR for line in lines
        )
        data = _data(
            [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")], named
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
