"""A codec translates one provider dialect, in both directions, to and from plain data; it does no I/O.

    as a server   read    request body  -> GenerationRequest     whole, writer   events -> answer, stream
    as a client   request GenerationRequest -> WireRequest       completion, reader   answer, stream -> events

The common representation is `hud.trace`'s: chat messages, `ToolSpec`, `SamplingParams`, `Completion`; `request` and
`events` add what a server needs. The gateway uses both halves, agents the second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from hud.inference.dialects.events import Event
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest
from hud.inference.dialects.turns import Turn

Family = Literal["openai", "anthropic", "gemini"]
"""Provider family of a dialect: a provider takes requests of its own family unchanged."""

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


@dataclass(frozen=True)
class Refusal:
    """An HTTP error status and its sentence."""

    status: int
    message: str
    retry_after: float | None = None
    """Seconds to wait before the next attempt."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that belong to the status."""
        if self.retry_after is None:
            return []
        return [(b"retry-after", str(max(1, math.ceil(self.retry_after))).encode())]


class StreamWriter(Protocol):
    """Writes the events of one answer as a stream's bytes."""

    content_type: bytes

    def write(self, event: Event) -> bytes:
        """Return the bytes that an event adds; they may be empty."""
        ...

    def end(self) -> bytes:
        """Return the bytes after the last event."""
        ...

    def fail(self, refusal: Refusal) -> bytes:
        """Return the bytes that end a stream with an error."""
        ...


class Codec(Protocol):
    """A dialect as a server speaks it."""

    family: Family

    def read(self, body: Fields) -> GenerationRequest:
        """Return the request in a body. Raises `UsageError` for a wrong or unsupported field."""
        ...

    def whole(
        self, body: Fields, request: GenerationRequest, model: str, turns: Sequence[Turn]
    ) -> dict[str, Any]:
        """Return the answer that is sent whole."""
        ...

    def writer(self, body: Fields, request: GenerationRequest, model: str) -> StreamWriter:
        """Return the writer of an answer that is streamed."""
        ...

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """Return the body of an error; `detail` repeats its sentence."""
        ...
