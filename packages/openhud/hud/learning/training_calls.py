"""Calls of a training session: name, request and answer of each.

`POST /v1/models/{id}/train/{name}` takes the request and returns the answer. Routes, `TrainingClient` and the engine's
table of implementations are derived from these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, Field, field_validator

from hud.learning.wire_types import (
    BackwardRequest,
    DiscardedGradient,
    ForwardBackwardRequest,
    ForwardBackwardResult,
    ForwardRequest,
    ForwardResult,
    LossRequest,
    OpenedSession,
    OptimStepRequest,
    OptimStepResult,
    Strict,
)
from hud.trace import ToolSpec

Q = TypeVar("Q", bound=BaseModel)
A = TypeVar("A")


@dataclass(frozen=True)
class Call(Generic[Q, A]):
    """A call: its name and the types of its request and its answer."""

    name: str
    request: type[Q]
    answer: type[A]


class OpenRequest(Strict):
    """Acquire the model's lease, load its weights and optimizer state, and start without a gradient and with an empty
    cache.
    """

    alone: bool = False
    """Reject other clients until this one closes the session, or its process ends."""
    teacher: str | None = None
    """Model that later passes name as their teacher; refused here if it cannot score the model's tokens."""
    pinned: bool = False
    """The passes will name a checkpoint of the teacher, so that a model may be its own."""


class CloseRequest(Strict):
    """End the session: drop the accumulated gradient and release the lease."""

    alone: bool = False
    """Only if the session belongs to this client."""


class ClosedSession(Strict):
    """Answer to `CloseRequest`."""

    closed: bool = True


class HoldRequest(Strict):
    """Renew the exclusive session of a training run."""


class HeldSession(Strict):
    """Answer to `HoldRequest`."""

    held: bool
    """True if the session belongs to this client."""


class DiscardRequest(Strict):
    """Discard the accumulated gradient; its client gets a conflict at its next call."""


class DiscardResult(Strict):
    """Answer to `DiscardRequest`."""

    discarded: DiscardedGradient | None


class Conversation(Strict):
    """A run as chat messages, including assistant turns, with its tools."""

    messages: list[dict[str, Any]]
    tools: list[ToolSpec] = Field(default_factory=list)

    @field_validator("messages")
    @classmethod
    def _readable(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for place, message in enumerate(messages):
            problem = _problem_of(message)
            if problem is not None:
                raise ValueError(f"message {place} {problem}")
        return messages


def _problem_of(message: dict[str, Any]) -> str | None:
    """Return what a chat template could not read of a message."""
    if not isinstance(message.get("role"), str):
        return "has no role"
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    if not isinstance(content, str | list | None):
        return "has content that is neither text nor a list of parts"
    if not all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in parts):
        return "has a part of content without a type"
    if any(part["type"] == "text" and not isinstance(part.get("text"), str) for part in parts):
        return "has a part of text without its text"
    calls = message.get("tool_calls") or []
    named = isinstance(calls, list) and all(
        isinstance(call, dict) and _is_named(call.get("function")) for call in calls
    )
    return None if named else "has a tool call without a function's name"


def _is_named(function: Any) -> bool:
    return isinstance(function, dict) and isinstance(function.get("name"), str)


class RenderRequest(Strict):
    """Return recorded conversations as token ids: the model's prompts and outputs."""

    conversations: list[Conversation]
    verdicts: bool = False
    """Return the two verdicts on each conversation, in place of its turns; of a reward model alone."""


class RenderResult(Strict):
    """Answer to `RenderRequest`: the samples of each conversation, without logprobs."""

    samples: list[list[dict[str, Any]]]
    max_context: int
    """Number of tokens that the model's context holds."""


class RateRequest(Strict):
    """Rate conversations by a reward model, at its head."""

    conversations: list[Conversation] = Field(min_length=1, max_length=256)


class Rates(Strict):
    """Answer to `RateRequest`."""

    rewards: list[float]
    """Reward of each conversation, in nats: of two, the first is the better one with probability σ(r_1 - r_2)."""


OPEN = Call("open", OpenRequest, OpenedSession)
CLOSE = Call("close", CloseRequest, ClosedSession)
HOLD = Call("hold", HoldRequest, HeldSession)
DISCARD = Call("discard", DiscardRequest, DiscardResult)
RENDER = Call("render", RenderRequest, RenderResult)
FORWARD_BACKWARD = Call("forward-backward", ForwardBackwardRequest, ForwardBackwardResult)
LOSS = Call("loss", LossRequest, ForwardBackwardResult)
FORWARD = Call("forward", ForwardRequest, ForwardResult)
BACKWARD = Call("backward", BackwardRequest, ForwardBackwardResult)
RATE = Call("rate", RateRequest, Rates)
OPTIM_STEP = Call("optim-step", OptimStepRequest, OptimStepResult)

TRAINING_CALLS: tuple[Call[Any, Any], ...] = (
    FORWARD_BACKWARD,
    LOSS,
    FORWARD,
    BACKWARD,
    OPTIM_STEP,
    OPEN,
    HOLD,
    RENDER,
    DISCARD,
    CLOSE,
)
