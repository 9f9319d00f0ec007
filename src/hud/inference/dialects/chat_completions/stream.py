"""Streamed chat completions: read into events, joined into one answer, and written from events."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hud import exact_json
from hud.inference.dialects.chat_completions.answer import (
    token_counts,
    write_ending,
    write_error,
    write_logprobs,
    write_usage,
)
from hud.inference.dialects.codec import EVENTS, Refusal
from hud.inference.dialects.events import (
    Begun,
    CallArguments,
    CallBegun,
    CallEnded,
    Event,
    Finished,
    Reason,
    ReasoningDelta,
    TextDelta,
    TokenInfo,
    TokensDrawn,
    reason_of,
    usage_of,
)
from hud.inference.retries import BrokenAnswer
from hud.trace import Usage, call_message, new_id

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


def joined_answer(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the answer that a stream's chunks add up to. Raises `BrokenAnswer` for a stream that ended early."""
    answer: dict[str, Any] = {}
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    choice: dict[str, Any] = {"message": message, "finish_reason": None}
    for event in events:
        for name in ("model", "usage"):
            if event.get(name):
                answer[name] = event[name]
        for part in event.get("choices") or []:
            delta = part.get("delta") or {}
            for name in _TEXTS:
                if delta.get(name) is not None:
                    message[name] = (message.get(name) or "") + delta[name]
            for position, call in enumerate(delta.get("tool_calls") or []):
                _add(calls, call.get("index", position), call)
            for name in ("finish_reason", "stop_reason"):
                if part.get(name):
                    choice[name] = part[name]
    if choice["finish_reason"] is None:
        raise BrokenAnswer("broke its stream off before the answer was complete")
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {**answer, "choices": [choice]}


def _add(calls: dict[int, dict[str, Any]], index: int, delta: dict[str, Any]) -> None:
    call = calls.setdefault(index, {"id": None, "function": {"name": "", "arguments": ""}})
    call["id"] = call["id"] or delta.get("id")
    for name, text in (delta.get("function") or {}).items():
        if isinstance(text, str):
            call["function"][name] = call["function"].get(name, "") + text


class ChatReader:
    """Reads the chunks of a chat completion; `named` maps function names on the wire to ours."""

    def __init__(self, choices: int, named: Mapping[str, str]) -> None:
        self.usage = Usage()
        self._choices = choices
        self._named = named
        self._begun = False
        self._open: dict[int, int] = {}
        """Position of the call that each choice is writing."""
        self._calls: dict[tuple[int, int], int] = {}
        self._reasons: dict[int, Reason] = {}
        self._refusals: dict[int, str] = {}

    def read(self, value: dict[str, Any]) -> list[Event]:
        events: list[Event] = []
        if not self._begun:
            self._begun = True
            events.append(Begun())
        usage = value.get("usage")
        if isinstance(usage, dict):
            self.usage = token_counts(usage).usage()
        for choice in value.get("choices") or []:
            events += self._choice(choice)
        return events

    def end(self) -> list[Event]:
        events: list[Event] = [] if self._begun else [Begun()]
        for choice in range(self._choices):
            events += self._end_call(choice)
            # The provider counts all choices together.
            share = self.usage if choice == 0 else self.usage.model_copy(update=_NO_OUTPUT)
            reason = self._reasons.get(choice, "stop")
            events.append(Finished(choice, reason, share, refusal=self._refusals.get(choice)))
        return events

    def _choice(self, choice: dict[str, Any]) -> list[Event]:
        place, delta = choice.get("index") or 0, choice.get("delta") or {}
        events: list[Event] = []
        tokens = (choice.get("logprobs") or {}).get("content")
        if tokens:
            events.append(TokensDrawn(place, [_info(token) for token in tokens]))
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            events.append(ReasoningDelta(place, reasoning))
        if delta.get("content"):
            events += self._end_call(place)
            events.append(TextDelta(place, delta["content"]))
        if delta.get("refusal"):
            self._refusals[place] = self._refusals.get(place, "") + delta["refusal"]
        for call in delta.get("tool_calls") or []:
            events += self._call(place, call)
        reason = choice.get("finish_reason")
        if reason:
            self._reasons[place] = "tool_calls" if reason == "function_call" else reason_of(reason)
        return events

    def _call(self, place: int, call: dict[str, Any]) -> list[Event]:
        events: list[Event] = []
        key, function = (place, call.get("index") or 0), call.get("function") or {}
        if key not in self._calls:
            events += self._end_call(place)
            position = sum(choice == place for choice, _ in self._calls)
            self._calls[key] = self._open[place] = position
            identifier = call.get("id") or f"call_{new_id()[:12]}"
            name = function.get("name") or ""
            events.append(CallBegun(place, position, identifier, self._named.get(name, name)))
        if function.get("arguments"):
            events.append(CallArguments(place, self._calls[key], function["arguments"]))
        return events

    def _end_call(self, place: int) -> list[Event]:
        position = self._open.pop(place, None)
        return [] if position is None else [CallEnded(place, position)]


_NO_OUTPUT = {"completion_tokens": 0}


def _info(token: dict[str, Any]) -> TokenInfo:
    text = token.get("token") or ""
    raw = token.get("bytes")
    return TokenInfo(
        text,
        bytes(raw) if raw is not None else text.encode(),
        token.get("logprob") or 0.0,
        [_info(other) for other in token.get("top_logprobs") or []],
    )


class ChatWriter:
    """Writes the chunks of a chat completion."""

    content_type = EVENTS

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        head = {
            "id": f"chatcmpl-{new_id()}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._head = b"data: " + exact_json.dumps(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._begun: set[int] = set()
        self._tokens: dict[int, list[TokenInfo]] = {}
        self._ends: list[Finished] = []

    def write(self, event: Event) -> bytes:
        match event:
            case TextDelta(choice, text):
                return self._chunk(choice, b'{"content":' + exact_json.dumps(text) + b"}")
            case ReasoningDelta(choice, text):
                return self._chunk(choice, b'{"reasoning_content":' + exact_json.dumps(text) + b"}")
            case CallBegun(choice, position, identifier, name):
                call = {"index": position, **call_message(identifier, name, "")}
                return self._chunk(choice, exact_json.dumps({"tool_calls": [call]}))
            case CallArguments(choice, position, text):
                more = {"index": position, "function": {"arguments": text}}
                return self._chunk(choice, exact_json.dumps({"tool_calls": [more]}))
            case TokensDrawn(choice, tokens):
                self._tokens.setdefault(choice, []).extend(tokens)
            case Finished():
                self._ends.append(event)
                return self._chunk(event.choice, b"{}", write_ending(event))
        return b""

    def end(self) -> bytes:
        last = b""
        if self._include_usage:
            usage = exact_json.dumps(write_usage(usage_of(self._ends)))
            last = self._head + b'],"usage":' + usage + b"}\n\n"
        return last + b"data: [DONE]\n\n"

    def fail(self, refusal: Refusal) -> bytes:
        return b"data: " + exact_json.dumps(write_error(refusal)) + b"\n\n"

    def _chunk(self, choice: int, delta: bytes, ending: dict[str, Any] | None = None) -> bytes:
        role = b""
        if choice not in self._begun:
            self._begun.add(choice)
            role = self._told(choice, b'{"role":"assistant","content":""}', b"null", None)
        logprobs = b"null"
        tokens = self._tokens.pop(choice, None)
        if tokens:
            logprobs = exact_json.dumps({"content": write_logprobs(tokens), "refusal": None})
        return role + self._told(choice, delta, logprobs, ending)

    def _told(
        self, choice: int, delta: bytes, logprobs: bytes, ending: dict[str, Any] | None
    ) -> bytes:
        rest = b'"finish_reason":null}' if ending is None else exact_json.dumps(ending)[1:]
        return b"".join(
            (
                self._head,
                b'{"index":%d,"delta":' % choice,
                delta,
                b',"logprobs":',
                logprobs,
                b",",
                rest,
                self._tail,
            )
        )
