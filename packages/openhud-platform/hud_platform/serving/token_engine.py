"""`TokenEngine`: the platform's interface to sampling and training. It handles tokens and weights; text, chat
formats and tool calls belong to the callers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from hud.client.contributor import UNNAMED, Contributor
from hud.errors import HudError
from hud.trace import SamplingParams
from hud.trace.sampled.pictures import Picture
from hud_platform.models.records import ModelRecord


@dataclass(frozen=True)
class TokenRequest:
    """Sequence to sample."""

    prompt: list[int]
    params: SamplingParams
    stop_ids: frozenset[int]
    top_logprobs: int = 0
    """Number of alternatives to return with each token, at most 20."""
    tenant: str = ""
    """Tenant for fair scheduling: tenants take turns when slots are scarce."""
    grammar: str | None = None
    """Grammar of the output, in llguidance's Lark; None: free text."""
    pictures: tuple[Picture, ...] = ()
    """Pictures of the prompt, in order."""
    followed: bool = True
    """False: all tokens come at the end, in one delta, which takes less processor time."""


@dataclass(frozen=True)
class TokenDelta:
    """Tokens sampled since the last delta, one or more."""

    token_ids: list[int]
    logprobs: list[float]
    """Natural log, under the distribution that each token was sampled from."""
    top: list[list[tuple[int, float]]] | None = None
    """For each position the most likely tokens, in descending order; None if not requested."""
    cached_tokens: int = 0
    """As in `TokenEnd`, for readers that stop before the end."""
    version: str | None = None
    """Checkpoint whose weights sampled the tokens up to the first swap; None: the base weights."""
    swaps: list[tuple[int, str | None]] = field(default_factory=list)
    """`(position, checkpoint)` of each swap of weights so far: the first token sampled by the new weights."""


@dataclass(frozen=True)
class TokenEnd:
    """Last item of a stream."""

    finish_reason: Literal["stop", "length"]
    cached_tokens: int
    """Prompt tokens served from the prefix cache."""
    version: str | None
    """As in `TokenDelta`."""


class EngineDownError(HudError):
    """The engine is restarting; `retry_after` is in seconds."""

    status = 503

    def __init__(self, message: str, retry_after: float = 2.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TokenEngine(Protocol):
    """Interface of an engine that samples and trains policies, in this process or in another."""

    def stream(
        self, model: ModelRecord, checkpoint: str | None, request: TokenRequest
    ) -> AsyncGenerator[TokenDelta | TokenEnd, None]:
        """Sample one sequence from a model at its head (`checkpoint` None), read when sampling begins, or pinned
        to a checkpoint's id, or to `BASE`: the base weights.
        Closing the iterator frees its slot before the next decode step. Raises `UsageError` for an invalid prompt,
        `OverloadedError`, and `EngineDownError`.
        """

    async def call(
        self, model: ModelRecord, body: BaseModel, client: Contributor = UNNAMED
    ) -> bytes:
        """Return the result, as JSON, of a call on a model; the type of `body` identifies the call (`serving.calls`)."""

    async def status(self) -> dict[str, Any]:
        """Return the loaded policies and their load; starts no process."""

    @property
    def up(self) -> bool:
        """False while the engine restarts or cannot be started."""

    @property
    def streams(self) -> int:
        """Number of sequences that are being sampled or wait for a slot."""

    async def start(self) -> None:
        """Start before the first request. Raises `EngineDownError` if the start fails."""

    async def stop(self) -> None:
        """Cancel work in flight, release leases, and unload all models."""
