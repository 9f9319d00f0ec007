"""Calls of a training session: name, request and answer of each.

`POST /v1/models/{id}/train/{name}` takes the request and returns the answer. Routes, `TrainingClient` and the engine's
table of implementations are derived from these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, Field

from hud.learning.wire_types import (
    BackwardRequest,
    DiscardedGradient,
    ForwardBackwardRequest,
    ForwardBackwardResult,
    ForwardRequest,
    ForwardResult,
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
    """One call: its name and the types of its request and its answer."""

    name: str
    request: type[Q]
    answer: type[A]


class OpenRequest(Strict):
    """Take the model's lease, load what training continues from, and begin with nothing accumulated and an empty cache."""

    alone: bool = False
    """Refuse other clients until this one closes the session, or is gone."""


class CloseRequest(Strict):
    """End the session: what was accumulated is dropped, and the lease is free."""

    alone: bool = False
    """Only where the session is this client's own."""


class ClosedSession(Strict):
    """Answer to `CloseRequest`."""

    closed: bool = True


class HoldRequest(Strict):
    """Take a sign of life of the training run that has the session to itself."""


class HeldSession(Strict):
    """Answer to `HoldRequest`."""

    held: bool
    """True where the session is this client's own."""


class DiscardRequest(Strict):
    """Throw away what is accumulated; a client that loses it is notified at its next call."""


class DiscardResult(Strict):
    """Answer to `DiscardRequest`."""

    discarded: DiscardedGradient | None


class Conversation(Strict):
    """One run as chat messages, its assistant's turns among them, and the tools that it was offered."""

    messages: list[dict[str, Any]]
    tools: list[ToolSpec] = Field(default_factory=list)


class RenderRequest(Strict):
    """Return recorded conversations as the token ids that the model would have been given and have drawn."""

    conversations: list[Conversation]


class RenderResult(Strict):
    """Answer to `RenderRequest`: the samples of each conversation, without logprobs."""

    samples: list[list[dict[str, Any]]]


OPEN = Call("open", OpenRequest, OpenedSession)
CLOSE = Call("close", CloseRequest, ClosedSession)
HOLD = Call("hold", HoldRequest, HeldSession)
DISCARD = Call("discard", DiscardRequest, DiscardResult)
RENDER = Call("render", RenderRequest, RenderResult)
FORWARD_BACKWARD = Call("forward-backward", ForwardBackwardRequest, ForwardBackwardResult)
FORWARD = Call("forward", ForwardRequest, ForwardResult)
BACKWARD = Call("backward", BackwardRequest, ForwardBackwardResult)
OPTIM_STEP = Call("optim-step", OptimStepRequest, OptimStepResult)

TRAINING_CALLS: tuple[Call[Any, Any], ...] = (
    FORWARD_BACKWARD,
    FORWARD,
    BACKWARD,
    OPTIM_STEP,
    OPEN,
    HOLD,
    RENDER,
    DISCARD,
    CLOSE,
)
