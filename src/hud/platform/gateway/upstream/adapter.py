"""What is needed to ask a provider in its dialect."""

from __future__ import annotations

from typing import Any, Protocol

from hud.errors import UsageError
from hud.inference.dialects.events import Event
from hud.inference.dialects.request import GenerationRequest
from hud.platform.gateway.ledger import Meter


class Reader(Protocol):
    """Reads one streamed answer."""

    def take(self, value: dict[str, Any]) -> list[Event]:
        """Return what an item of the stream says."""
        ...

    def end(self) -> list[Event]:
        """Return what is left when the stream is over."""
        ...


class Adapter(Protocol):
    """One provider's dialect, from our side of it."""

    action: str
    """What is called, as `ProviderModel.endpoint` takes it."""

    def body(self, model: str, request: GenerationRequest) -> dict[str, Any]:
        """Return the request in the provider's words. Raises `UsageError` for what it has no words for."""
        ...

    def reader(self, request: GenerationRequest, meter: Meter) -> Reader:
        """Return who reads the answer."""
        ...


def refuse_tokens(model: str, request: GenerationRequest) -> None:
    """Refuse what only a model of this server can be asked."""
    for given, name in (
        (request.return_token_ids, "return_token_ids"),
        (request.continuation, "prompt_token_ids"),
        (request.prompts is not None, "prompt"),
    ):
        if given:
            raise UsageError(
                f"{name} is not supported for {model!r}: its provider shows no tokens."
            )


def refuse_logprobs(model: str, request: GenerationRequest) -> None:
    """Refuse logprobs where the provider has none."""
    if request.top_logprobs is not None:
        raise UsageError(f"logprobs are not supported for {model!r}: its provider gives none.")


def refuse_choices(model: str, request: GenerationRequest) -> None:
    """Refuse several choices where the provider gives one."""
    if request.choices > 1:
        raise UsageError(f"Only one choice can be asked of {model!r} at a time.")


def data_url(url: str) -> tuple[str, str] | None:
    """Return the type and the base64 of an image that stands in its own URL, None for one that is elsewhere."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head[len("data:") : -len(";base64")] or "image/png", data
