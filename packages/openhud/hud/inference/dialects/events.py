"""Events of a streamed response, common to all dialects, and their sum: whole turns.

A request's events begin with `Begun` and end with one `Finished` for each choice. Within a choice the order is:
reasoning, then text and tool calls; a tool call is begun, its arguments follow, and it ends before anything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from hud.trace import Sample, Usage

Reason = Literal["stop", "length", "tool_calls", "content_filter"]
_REASONS: dict[str | None, Reason] = {
    "length": "length",
    "context_full": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "refusal": "content_filter",
}


def reason_of(finish_reason: str | None) -> Reason:
    """Return a client's finish reason for a `Completion.finish_reason`; default `stop`."""
    return _REASONS.get(finish_reason, "stop")


@dataclass(frozen=True, slots=True)
class Begun:
    """Start of the response: the request can no longer be refused."""

    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text to append to the response."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text to append to the reasoning before the response."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtSealed:
    """End of the reasoning: an opaque text, by which the server restores it from a later request."""

    choice: int
    seal: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """Start of a tool call; `position` counts the calls of its choice from 0."""

    choice: int
    position: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """JSON text to append to a call's arguments."""

    choice: int
    position: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """End of a call: its arguments are a complete JSON object. A call that the end of its turn cut off has none."""

    choice: int
    position: int


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A sampled token."""

    text: str
    raw: bytes
    """Bytes of the token, which may be part of a character."""
    logprob: float
    top: list[TokenInfo] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TokensDrawn:
    """The tokens of the following events; only with requested logprobs."""

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
    """A tool call could not be parsed."""
    refusal: str | None = None
    sample: Sample | None = None
    checkpoint: str | None = None


Event = (
    Begun
    | TextDelta
    | ReasoningDelta
    | ThoughtSealed
    | CallBegun
    | CallArguments
    | CallEnded
    | TokensDrawn
    | Finished
)


@dataclass
class Call:
    """A tool call; `arguments` is JSON."""

    id: str
    name: str
    arguments: str = ""
    complete: bool = False
    """False for a call that the end of its turn cut off."""


@dataclass
class Turn:
    """One choice of an answer."""

    text: str = ""
    reasoning: str = ""
    seal: str = ""
    """Opaque text of the reasoning; empty: none."""
    calls: list[Call] = field(default_factory=list)
    tokens: list[TokenInfo] = field(default_factory=list)
    finished: Finished = field(default_factory=lambda: Finished(0, "stop", Usage()))


def turns_of(events: Iterable[Event], choices: int) -> list[Turn]:
    """Return each choice's turn."""
    turns = [Turn() for _ in range(choices)]
    for event in events:
        if isinstance(event, Begun):
            continue
        turn = turns[event.choice]
        match event:
            case TextDelta():
                turn.text += event.text
            case ReasoningDelta():
                turn.reasoning += event.text
            case ThoughtSealed():
                turn.seal = event.seal
            case CallBegun():
                turn.calls.append(Call(event.id, event.name))
            case CallArguments():
                turn.calls[event.position].arguments += event.text
            case CallEnded():
                turn.calls[event.position].complete = True
            case TokensDrawn():
                turn.tokens.extend(event.tokens)
            case Finished():
                turn.finished = event
    return turns


def usage_of(finished: Iterable[Finished]) -> Usage:
    """Return the tokens of all choices of a request: the prompt counts once."""
    ends = list(finished)
    if not ends:
        return Usage()
    return Usage(
        prompt_tokens=max(end.usage.prompt_tokens for end in ends),
        completion_tokens=sum(end.usage.completion_tokens for end in ends),
        cached_tokens=max(end.usage.cached_tokens for end in ends),
    )
