"""Writer of streamed chat completions."""

from __future__ import annotations

import time
from typing import Any

from hud import exact_json
from hud.inference.dialects.chat_completions.answer import (
    write_ending,
    write_error,
    write_logprobs,
    write_usage,
)
from hud.inference.dialects.codec import EVENTS, Refusal
from hud.inference.dialects.events import (
    CallArguments,
    CallBegun,
    Event,
    Finished,
    ReasoningDelta,
    TextDelta,
    TokenInfo,
    TokensDrawn,
    usage_of,
)
from hud.trace import call_message, new_id


class ChatWriter:
    """Writes the chunks of a chat completion."""

    content_type = EVENTS
    answer = None

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
