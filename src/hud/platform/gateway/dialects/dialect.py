"""What every dialect can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from hud.platform.gateway.answers import Turn
from hud.platform.gateway.events import Event
from hud.platform.gateway.fields import Fields
from hud.platform.gateway.refusals import Refusal
from hud.platform.gateway.requests import GenerationRequest

Family = Literal["openai", "anthropic", "gemini"]
"""Whose clients speak a dialect: a provider of the family understands a request of it as it is."""


class Teller(Protocol):
    """Tells one answer as a stream."""

    content_type: bytes

    def tell(self, event: Event) -> bytes:
        """Return what an event adds to the stream; it may be nothing."""
        ...

    def end(self) -> bytes:
        """Return what comes after the last event."""
        ...

    def fail(self, refusal: Refusal) -> bytes:
        """Return how a stream that has begun ends in failure."""
        ...


class Dialect(Protocol):
    """One way to ask for a turn."""

    family: Family

    def read(self, body: Fields) -> GenerationRequest:
        """Return what is asked for. Raises `UsageError` for what is wrong or cannot be honoured."""
        ...

    def whole(
        self, body: Fields, request: GenerationRequest, model: str, turns: Sequence[Turn]
    ) -> dict[str, Any]:
        """Return the whole answer."""
        ...

    def teller(self, body: Fields, request: GenerationRequest, model: str) -> Teller:
        """Return who tells the answer as a stream."""
        ...

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """Return the body of an error, with our `detail` in it."""
        ...
