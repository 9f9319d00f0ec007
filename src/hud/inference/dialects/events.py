"""What a model says, as it says it, whatever dialect it will be told in.

A request's events begin with `Begun` and end with one `Finished` for each choice. Within a choice the order is:
reasoning, then text and tool calls; a tool call is begun, its arguments follow, and it ends before anything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hud.trace import Sample, Usage

Reason = Literal["stop", "length", "tool_calls", "content_filter"]


@dataclass(frozen=True, slots=True)
class Begun:
    """The model has begun; nothing can be refused any more."""

    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks before it answers."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A tool call; `position` counts the calls of its choice from 0."""

    choice: int
    position: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON of a call's arguments."""

    choice: int
    position: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The arguments are complete."""

    choice: int
    position: int


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """One drawn token."""

    text: str
    raw: bytes
    """Its bytes: a token may be part of a character."""
    logprob: float
    top: list[TokenInfo] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TokensDrawn:
    """The tokens behind what follows; only where logprobs were asked for."""

    choice: int
    tokens: list[TokenInfo]


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one choice. `usage` counts this choice's tokens, the prompt's included."""

    choice: int
    reason: Reason
    usage: Usage
    stop_string: str | None = None
    malformed: bool = False
    """There was a tool call that could not be read."""
    refusal: str | None = None
    sample: Sample | None = None
    checkpoint: str | None = None


Event = (
    Begun
    | TextDelta
    | ReasoningDelta
    | CallBegun
    | CallArguments
    | CallEnded
    | TokensDrawn
    | Finished
)
