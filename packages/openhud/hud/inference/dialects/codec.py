"""A codec translates one provider dialect, in both directions, to and from plain data; it does no I/O.

    as a server   read    request body  -> GenerationRequest     unstreamed, writer events -> answer, stream
    as a client   request GenerationRequest -> WireRequest       completion, reader   answer, stream -> events

The common representation is `hud.trace`'s: chat messages, `ToolSpec`, `SamplingParams`, `Completion`; `request` and
`events` add what a server needs. The gateway uses both halves, agents the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hud.inference.dialects.events import Event, Turn
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest
from hud.trace import Completion, Usage

SafetyPolicy = Literal["acknowledge", "stop"]
"""Policy for a computer action that the provider wants a person to confirm: it is carried out, or ends the run."""

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


@dataclass(frozen=True)
class Refusal:
    """An HTTP error status and its sentence."""

    status: int
    message: str
    retry_after: float | None = None
    """Seconds to wait before the next attempt."""
    too_long: bool = False
    """The conversation exceeds the model's context; each dialect has its own code or words, which clients look for."""

    def sentence(self, overflow: str) -> str:
        """Return the message; for a context overflow it contains the dialect's words, which begin with `overflow`."""
        if not self.too_long or overflow.lower() in self.message.lower():
            return self.message
        return f"{overflow}: {self.message}"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that belong to the status."""
        if self.retry_after is None:
            return []
        return [(b"retry-after", str(max(1, math.ceil(self.retry_after))).encode())]


class StreamWriter(Protocol):
    """Writer of a response's events as a stream."""

    content_type: bytes

    @property
    def answer(self) -> dict[str, Any] | None:
        """The whole answer, after `end`; None: the dialect stores no answers."""

    def write(self, event: Event) -> bytes:
        """Return the bytes of an event; they may be empty."""

    def end(self) -> bytes:
        """Return the bytes after the last event."""

    def fail(self, refusal: Refusal) -> bytes:
        """Return the bytes that end a stream with an error."""


class ServerCodec(Protocol):
    """A dialect, server side."""

    def read(self, body: Fields) -> GenerationRequest:
        """Return the request in a body. Raises `UsageError` for a wrong or unsupported field."""

    def unstreamed(
        self, body: Fields, request: GenerationRequest, model: str, turns: Sequence[Turn]
    ) -> dict[str, Any]:
        """Return an unstreamed response."""

    def writer(self, body: Fields, request: GenerationRequest, model: str) -> StreamWriter:
        """Return the writer of a streamed response."""

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """Return the body of an error; `detail` repeats its sentence."""


class StreamReader(Protocol):
    """Reader of a streamed response's items."""

    usage: Usage
    """Tokens counted so far."""

    def read(self, value: dict[str, Any]) -> list[Event]:
        """Return the events in one item of the stream. Raises `BrokenAnswer` or `AnsweredError` for a failed turn."""

    def end(self) -> list[Event]:
        """Return the events after the last item. Raises `BrokenAnswer` for a stream that ended early."""


@dataclass
class WireRequest:
    """A request to a provider, and the functions that read its response, streamed or whole."""

    action: str
    """Path below the base URL, or method of the model (see `ClientCodec.url`)."""
    body: dict[str, Any]
    streams: bool
    """The answer is requested as server-sent events."""
    joined: Callable[[list[dict[str, Any]]], dict[str, Any]]
    """Returns the joined response of a stream. Raises `BrokenAnswer` for a stream that ended early."""
    completion: Callable[[dict[str, Any]], Completion | None]
    """Returns the turn in an answer; None: send `body` again, which has been extended. Raises `BrokenAnswer` for an
    incomplete answer."""
    lacks: str
    """Predicate for an error sentence about an answer that is not a JSON object."""
    headers: dict[str, str] = field(default_factory=dict)
    done: dict[str, Any] | None = None
    """Item that stands for `[DONE]`; None: the dialect has no such event."""


@dataclass
class StreamedRequest(WireRequest):
    """A request whose streamed response can be read incrementally."""

    reader: Callable[[], StreamReader] = field(kw_only=True)


class ClientCodec(Protocol):
    """A dialect, client side. `endpoints.path_below` and `endpoints.bearer` are the usual `url` and `credentials`."""

    def url(self, base: str, model: str, action: str) -> str:
        """Return the URL of an action, below a base URL or of a model."""

    def credentials(self, key: str | None) -> dict[str, str]:
        """Return the headers that hold a key; empty without one."""

    def request(self, model: str, request: GenerationRequest) -> WireRequest:
        """Return the request to a provider's `model`. Raises `UsageError` for what the dialect cannot express."""


class StreamingCodec(ClientCodec, Protocol):
    """A dialect whose streams the gateway forwards."""

    def request(self, model: str, request: GenerationRequest) -> StreamedRequest: ...
