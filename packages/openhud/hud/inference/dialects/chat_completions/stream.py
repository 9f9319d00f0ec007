"""Streamed chat completions, joined into one answer and read into events."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hud.inference.dialects.chat_completions.answer import call_entries, token_counts
from hud.inference.dialects.chat_completions.content import reasoning_in, texts_of
from hud.inference.dialects.chat_completions.finish_reasons import read_reason
from hud.inference.dialects.chat_completions.streamed_calls import StreamedCalls
from hud.inference.dialects.events import (
    Begun,
    Event,
    Finished,
    ReasoningDelta,
    TextDelta,
    TokenInfo,
    TokensDrawn,
    reason_of,
)
from hud.inference.dialects.received_calls import CallEvents
from hud.inference.dialects.tool_calls import CUT_OFF, MALFORMED, final_reason
from hud.inference.retries import BrokenAnswer, answered_error
from hud.trace import Usage

DONE: dict[str, Any] = {"done": True}
"""Item for the event `[DONE]`; compared by identity."""
BROKE_OFF = "broke its stream off before the answer was complete"


def joined_answer(events: list[dict[str, Any]], declared: Collection[str] = ()) -> dict[str, Any]:
    """Return the answer that a stream's chunks add up to; `declared` are the names of the request's tools.

    Of several choices the first counts. Raises `BrokenAnswer` for a stream that ended early.
    """
    answer: dict[str, Any] = {}
    message: dict[str, Any] = {}
    calls = StreamedCalls(declared)
    choice: dict[str, Any] = {"message": message, "finish_reason": None}
    done = in_pieces = False
    for event in events:
        done = done or event is DONE
        for name in ("model", "usage"):
            if event.get(name):
                answer[name] = event[name]
        for part in event.get("choices") or []:
            if _index(part) != 0:
                continue
            delta = _delta(part)
            if delta.get("error"):
                choice["error"] = delta["error"]
            for name, text in _new_texts(part, message, in_pieces=in_pieces).items():
                message[name] = message.get(name, "") + text
            in_pieces = in_pieces or bool(part.get("delta"))
            calls.take(_new_pieces(part, calls))
            for name in ("stop_reason", "error"):
                if part.get(name):
                    choice[name] = part[name]
            choice["finish_reason"] = _later_reason(part, choice["finish_reason"])
    if choice["finish_reason"] is None and done:
        choice["finish_reason"] = _unsaid_reason(message.get("content"), calls)
    if choice["finish_reason"] is None:
        raise BrokenAnswer(BROKE_OFF)
    if calls.calls:
        message["tool_calls"] = calls.messages()
    return {**answer, "choices": [choice]}


class ChatReader:
    """Reads the chunks of a chat completion; `named` maps function names on the wire to ours."""

    def __init__(self, choices: int, named: Mapping[str, str]) -> None:
        self.usage = Usage()
        self._begun = self._done = False
        self._choices = [
            _Choice(place, StreamedCalls(named), CallEvents(place, named))
            for place in range(choices)
        ]

    def read(self, value: dict[str, Any]) -> list[Event]:
        events: list[Event] = []
        if value is DONE:
            self._done = True
            return events
        if not self._begun:
            self._begun = True
            events.append(Begun())
        usage = value.get("usage")
        if isinstance(usage, dict):
            self.usage = token_counts(usage).usage()
        for part in value.get("choices") or []:
            events += self._choices[_index(part)].read(part)
        return events

    def end(self) -> list[Event]:
        events: list[Event] = []
        for choice in self._choices:
            # The provider counts all choices together.
            share = self.usage if choice.place == 0 else self.usage.model_copy(update=_NO_OUTPUT)
            events += choice.end(share, done=self._done)
        return events


@dataclass
class _Choice:
    """The state of one choice.

    A call is written while it is received, until the next one begins. What follows a call is held back until the end: its
    pieces may alternate with the call's.
    """

    place: int
    calls: StreamedCalls
    written: CallEvents
    reason: str | None = None
    spoke: bool = False
    """True after a text."""
    refusal: str | None = None
    later: list[Event] = field(default_factory=list)
    """Text and reasoning after the first call."""
    in_pieces: bool = False
    """True after a delta: a message that follows repeats the pieces."""
    texts: dict[str, str] = field(default_factory=dict)
    """Texts so far, by field."""

    def read(self, part: dict[str, Any]) -> list[Event]:
        """Return the events in this choice's part of a chunk."""
        delta = _delta(part)
        if error := part.get("error") or delta.get("error"):
            raise answered_error(error)
        events: list[Event] = []
        tokens = (part.get("logprobs") or {}).get("content")
        if tokens:
            events.append(TokensDrawn(self.place, [_info(token) for token in tokens]))
        texts = _new_texts(part, self.texts, in_pieces=self.in_pieces)
        for name, text in texts.items():
            self.texts[name] = self.texts.get(name, "") + text
        self.in_pieces = self.in_pieces or bool(part.get("delta"))
        spoken: list[Event] = []
        if reasoning := reasoning_in(texts):
            spoken.append(ReasoningDelta(self.place, reasoning))
        if texts.get("content"):
            spoken.append(TextDelta(self.place, texts["content"]))
            self.spoke = True
        if texts.get("refusal"):
            self.refusal = (self.refusal or "") + texts["refusal"]
        (self.later if self.calls.calls else events).extend(spoken)
        self.calls.take(_new_pieces(part, self.calls))
        self.reason = _later_reason(part, self.reason)
        return events + self._calls()

    def end(self, usage: Usage, *, done: bool) -> list[Event]:
        """Return the last events; `done`: the stream ended with `[DONE]`.

        Raises `BrokenAnswer` for a choice that ended early, and for unreadable calls.
        """
        if self.reason is None and done:
            self.reason = _unsaid_reason(self.spoke, self.calls)
        if self.reason is None:
            raise BrokenAnswer(BROKE_OFF)
        events: list[Event] = []
        cut = self.reason in CUT_OFF
        for call in self.calls.calls[self.written.ended :]:
            if call.name or call.text:
                events += self.written.end(call, cut=cut)
        reason = final_reason(self.reason, calls=self.written.ended > 0)
        malformed = reason == MALFORMED
        finished = Finished(
            self.place, reason_of(reason), usage, malformed=malformed, refusal=self.refusal
        )
        return [*events, *self.later, finished]

    def _calls(self) -> list[Event]:
        """Return the events of calls whose order is certain: the open one, and those that others follow."""
        events: list[Event] = []
        for position in range(self.written.ended, len(self.calls.calls)):
            call = self.calls.calls[position]
            if position + 1 == len(self.calls.calls) or not call.complete:
                return events + self.written.more(call)
            events += self.written.end(call, cut=False)
        return events


_NO_OUTPUT = {"completion_tokens": 0}


def _unsaid_reason(text: Any, calls: StreamedCalls) -> str | None:
    """Return the finish reason of a turn that ended with `[DONE]` alone; None for one that is not whole.

    The server has said that it is done: text and whole calls are the answer, part of a call is none.
    """
    begun = [call for call in calls.calls if call.name or call.text]
    if not all(call.complete for call in begun):
        return None
    return "stop" if begun or text else None


def _index(part: dict[str, Any]) -> int:
    index = int(part.get("index") or 0)
    if index < 0:
        raise ValueError(f"choice {index}")
    return index


def _delta(part: dict[str, Any]) -> dict[str, Any]:
    """Return a choice's delta; some servers send a message in its place."""
    delta: dict[str, Any] = part.get("delta") or part.get("message") or {}
    return delta


def _new_texts(
    part: dict[str, Any], so_far: Mapping[str, str], *, in_pieces: bool
) -> dict[str, str]:
    """Return the texts that a choice's part of a chunk adds; after pieces, a message in place of a delta repeats them."""
    texts = texts_of(_delta(part))
    if part.get("delta") or not in_pieces:
        return texts
    return {name: text.removeprefix(so_far.get(name, "")) for name, text in texts.items()}


def _new_pieces(part: dict[str, Any], so_far: StreamedCalls) -> list[dict[str, Any]]:
    """Return the pieces of calls that a choice's part of a chunk adds; a message in place of a delta may repeat all calls."""
    pieces = call_entries(_delta(part))
    if not part.get("delta") and so_far.are(pieces):
        return []
    return pieces


def _later_reason(part: dict[str, Any], before: str | None) -> str | None:
    """Return the finish reason after a part; one of a turn that was cut off stays."""
    reason = read_reason(part.get("finish_reason"))
    return before if reason is None or before in CUT_OFF else reason


def _info(token: dict[str, Any]) -> TokenInfo:
    text = token.get("token") or ""
    raw = token.get("bytes")
    return TokenInfo(
        text,
        bytes(raw) if raw is not None else text.encode(),
        token.get("logprob") or 0.0,
        [_info(other) for other in token.get("top_logprobs") or []],
    )
