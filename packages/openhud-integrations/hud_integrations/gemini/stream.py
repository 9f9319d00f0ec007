"""Streamed contents: read into events, joined into one response, and written from events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hud import exact_json
from hud.inference.dialects.codec import EVENTS, JSON, Refusal
from hud.inference.dialects.conversation_parts import Part
from hud.inference.dialects.events import (
    Begun,
    Call,
    CallArguments,
    CallBegun,
    CallEnded,
    Event,
    Finished,
    ReasoningDelta,
    TextDelta,
    ThoughtSealed,
    TokenInfo,
    TokensDrawn,
    reason_of,
    usage_of,
)
from hud.inference.dialects.received_calls import CallEvents, ReceivedCall
from hud.inference.dialects.tool_calls import MALFORMED, final_reason
from hud.inference.retries import BrokenAnswer
from hud.trace import Usage
from hud_integrations.gemini.answer import (
    FINISH_REASONS,
    NO_END,
    call_part,
    sign_parts,
    token_counts,
    whole_arguments,
    write_candidate,
    write_error,
    write_logprobs,
    write_usage,
)
from hud_integrations.gemini.spelling import camel_case


def joined_content(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the joined response of a stream's chunks.

    Chunks of a text become one part; a part with a signature stays unchanged.
    """
    response: dict[str, Any] = {}
    candidate: dict[str, Any] = {}
    parts: list[Part] = []
    for chunk in map(camel_case, chunks):
        response.update({name: value for name, value in chunk.items() if name != "candidates"})
        for piece in (chunk.get("candidates") or [])[:1]:
            for part in (piece.get("content") or {}).get("parts") or []:
                _append(parts, part)
            candidate.update({name: value for name, value in piece.items() if name != "content"})
    if candidate or parts:
        response["candidates"] = [{**candidate, "content": {"role": "model", "parts": parts}}]
    return response


def _append(parts: list[Part], part: Part) -> None:
    if part.keys() <= {"text", "thought"} and not part.get("text"):
        return  # The stream ends with an empty part.
    last = parts[-1] if parts else {}
    plain = part.keys() <= {"text", "thought"} and last.keys() <= {"text", "thought"}
    if plain and "text" in last and last.get("thought") == part.get("thought"):
        parts[-1] = {**last, "text": last["text"] + (part.get("text") or "")}
    else:
        parts.append(part)


class ContentReader:
    """Reader of a streamed response's chunks; `named` maps the request's function names to the original ones."""

    def __init__(self, named: Mapping[str, str]) -> None:
        self.usage = Usage()
        self._begun = False
        self._calls = CallEvents(0, named)
        self._finish: str | None = None

    def read(self, value: dict[str, Any]) -> list[Event]:
        value = camel_case(value)
        usage = value.get("usageMetadata")
        if usage:
            self.usage = token_counts(usage).usage()
        events: list[Event] = []
        if not self._begun:
            self._begun = True
            events.append(Begun(self.usage.prompt_tokens))
        if (value.get("promptFeedback") or {}).get("blockReason"):
            self._finish = "refusal"
        for candidate in (value.get("candidates") or [])[:1]:
            for part in (candidate.get("content") or {}).get("parts") or []:
                events += self._part(part)
            if candidate.get("finishReason") not in (None, "", "FINISH_REASON_UNSPECIFIED"):
                self._finish = FINISH_REASONS.get(candidate["finishReason"], "refusal")
        return events

    def end(self) -> list[Event]:
        if self._finish is None:
            raise BrokenAnswer(NO_END)
        reason = final_reason(self._finish, calls=self._calls.ended > 0)
        malformed = reason == MALFORMED
        return [Finished(0, reason_of(reason), self.usage, malformed=malformed)]

    def _part(self, part: Part) -> list[Event]:
        function = part.get("functionCall")
        if isinstance(function, dict):
            call = ReceivedCall()
            call.take(
                function.get("id") or "", function.get("name") or "", whole_arguments(function)
            )
            return self._calls.end(call, cut=False)
        text = part.get("text")
        if not text:
            return []
        return [ReasoningDelta(0, text) if part.get("thought") else TextDelta(0, text)]


class ContentWriter:
    """Writer of partial responses, as server-sent events or as items of a JSON array."""

    answer = None

    def __init__(self, model: str, response_id: str, *, think: bool, events: bool) -> None:
        self.content_type = EVENTS if events else JSON
        self._events = events
        self._think = think
        self._rest = {"modelVersion": model, "responseId": response_id}
        self._seals: dict[int, str] = {}
        self._calls: dict[tuple[int, int], Call] = {}
        self._tokens: dict[int, list[TokenInfo]] = {}
        self._ends: list[Finished] = []
        self._items = 0

    def write(self, event: Event) -> bytes:
        match event:
            case TextDelta(choice, text):
                return self._candidate(choice, [{"text": text}])
            case ReasoningDelta(choice, text) if self._think:
                return self._candidate(choice, [{"text": text, "thought": True}])
            case CallBegun(choice, position, identifier, name):
                self._calls[choice, position] = Call(identifier, name)
            case CallArguments(choice, position, text):
                self._calls[choice, position].arguments += text
            case CallEnded(choice, position):
                # Calls are not streamed in this dialect.
                parts = [call_part(self._calls.pop((choice, position)))]
                sign_parts(parts, self._seals.pop(choice, ""))
                return self._candidate(choice, parts)
            case ThoughtSealed(choice, seal):
                self._seals[choice] = seal
            case TokensDrawn(choice, tokens):
                self._tokens.setdefault(choice, []).extend(tokens)
            case Finished(choice):
                self._ends.append(event)
                last: list[Part] = []
                sign_parts(last, self._seals.pop(choice, ""))
                return self._candidate(choice, last, event)
        return b""

    def end(self) -> bytes:
        if self._events:
            return b""
        return b"]" if self._items else b"[]"

    def fail(self, refusal: Refusal) -> bytes:
        return self._item(write_error(refusal)) + self.end()

    def _candidate(
        self, choice: int, parts: list[dict[str, Any]], finished: Finished | None = None
    ) -> bytes:
        candidate = write_candidate(choice, parts, finished)
        tokens = self._tokens.pop(choice, None)
        if tokens:
            candidate.update(write_logprobs(tokens))
        item: dict[str, Any] = {"candidates": [candidate], **self._rest}
        if finished is not None:
            item["usageMetadata"] = write_usage(usage_of(self._ends))
        return self._item(item)

    def _item(self, value: dict[str, Any]) -> bytes:
        self._items += 1
        if self._events:
            return b"data: " + exact_json.dumps(value) + b"\r\n\r\n"
        return (b"[" if self._items == 1 else b",\r\n") + exact_json.dumps(value)
