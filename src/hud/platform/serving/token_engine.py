"""`TokenEngine`: what the platform asks of the part that samples and trains. It speaks tokens and weights; text,
chat formats and tool calls are its callers'."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from hud.errors import HudError
from hud.platform.models.records import ModelRecord
from hud.trace import SamplingParams
from hud.train.contributor import UNNAMED, Contributor


@dataclass(frozen=True)
class TokenRequest:
    """One sequence to draw."""

    prompt: list[int]
    params: SamplingParams
    stop_ids: frozenset[int]
    top_logprobs: int = 0
    """Alternatives to tell beside each token, at most 20."""
    tenant: str = ""
    """Tenant: tenants take turns where slots are scarce."""
    grammar: str | None = None
    """Grammar of the output, in llguidance's Lark; None: free text."""


@dataclass(frozen=True)
class TokenDelta:
    """Tokens drawn since the last delta, one or more."""

    token_ids: list[int]
    logprobs: list[float]
    """Natural log, under the distribution each was drawn from."""
    top: list[list[tuple[int, float]]] | None = None
    """For each token the likeliest ones at its place, likeliest first, where they were asked for."""
    cached_tokens: int = 0
    """As in `TokenEnd`, for readers that stop before it comes."""
    version: str | None = None
    """The checkpoint whose weights drew every token, up to the first swap; None: the base weights."""
    swaps: list[tuple[int, str | None]] = field(default_factory=list)
    """`(place, checkpoint)`: weights that took over on the way so far, and the first token that they drew."""


@dataclass(frozen=True)
class TokenEnd:
    """The last item of a stream."""

    finish_reason: Literal["stop", "length"]
    cached_tokens: int
    """Prompt tokens that were not computed again."""
    version: str | None
    """As in `TokenDelta`."""


class OverloadedError(HudError):
    """So much waits already that no more is taken; `retry_after` is in seconds."""

    status = 429

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineDownError(HudError):
    """The engine is being started again; `retry_after` is in seconds."""

    status = 503

    def __init__(self, message: str, retry_after: float = 2.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TokenEngine(Protocol):
    """Policies that sample and are trained: in this process, or in one of their own."""

    def stream(
        self, model: ModelRecord, checkpoint: str | None, request: TokenRequest
    ) -> AsyncGenerator[TokenDelta | TokenEnd, None]:
        """Draw one sequence from a model at its head (`checkpoint` None), as that is when drawing begins, or pinned
        to a checkpoint's id, or to `BASE`: the weights that the model began with.

        Closing the iterator frees what it holds before the next decode step. Raises `UsageError` for a prompt
        that cannot be answered, `OverloadedError`, and `EngineDownError`.
        """

    async def call(
        self, model: ModelRecord, body: BaseModel, client: Contributor = UNNAMED
    ) -> bytes:
        """Return the answer, as JSON, of a call on a model; the type of `body` says which (`serving.calls`)."""

    async def status(self) -> dict[str, Any]:
        """Return the loaded policies and their load; starts nothing."""

    @property
    def up(self) -> bool:
        """False while it is being started again, or could not be."""

    @property
    def streams(self) -> int:
        """Sequences that are being drawn, or wait for it."""

    async def start(self) -> None:
        """Be ready before the first request. Raises `EngineDownError` where that cannot be."""

    async def stop(self) -> None:
        """End what is in flight, give leases back, and let go of everything."""
