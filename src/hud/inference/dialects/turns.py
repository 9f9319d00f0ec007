"""Whole turns, gathered from events for clients that do not stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hud.inference.dialects.events import (
    Begun,
    CallArguments,
    CallBegun,
    CallEnded,
    Event,
    Finished,
    ReasoningDelta,
    TextDelta,
    TokenInfo,
    TokensDrawn,
)
from hud.trace import Usage


@dataclass
class Call:
    """A tool call; `arguments` is JSON."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Turn:
    """One choice of an answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    tokens: list[TokenInfo] = field(default_factory=list)
    finished: Finished = field(default_factory=lambda: Finished(0, "stop", Usage()))


def turns_of(events: Iterable[Event], choices: int) -> list[Turn]:
    """Return each choice's turn."""
    turns = [Turn() for _ in range(choices)]
    for event in events:
        if isinstance(event, Begun | CallEnded):
            continue
        turn = turns[event.choice]
        match event:
            case TextDelta():
                turn.text += event.text
            case ReasoningDelta():
                turn.reasoning += event.text
            case CallBegun():
                turn.calls.append(Call(event.id, event.name))
            case CallArguments():
                turn.calls[event.position].arguments += event.text
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
