"""Streamed messages: read into events, joined into one response, and written from events."""

from __future__ import annotations

from typing import Any

from hud import exact_json
from hud.inference.dialects.anthropic.answer import (
    FINISH_REASONS,
    message_head,
    token_counts,
    write_ending,
    write_error,
    write_usage,
)
from hud.inference.dialects.codec import EVENTS, Refusal
from hud.inference.dialects.conversation_parts import arguments_object
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
    reason_of,
)
from hud.inference.retries import BrokenAnswer
from hud.trace import Usage


def joined_message(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message of a stream's events. Raises `BrokenAnswer` for a stream that ended early."""
    message: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    over = False
    try:
        for event in events:
            match event.get("type"):
                case "message_start":
                    message = dict(event["message"])
                case "content_block_start":
                    blocks[event["index"]] = dict(event["content_block"])
                case "content_block_delta":
                    _extend(blocks[event["index"]], event["delta"])
                case "content_block_stop":
                    block = blocks[event["index"]]
                    if "partial_json" in block:
                        block["input"] = arguments_object(block.pop("partial_json"))
                case "message_delta":
                    counts = event.get("usage") or {}
                    known = {name: count for name, count in counts.items() if count is not None}
                    message |= {**event["delta"], "usage": {**message.get("usage", {}), **known}}
                case "message_stop":
                    over = True
    except (KeyError, TypeError, AttributeError) as error:
        raise BrokenAnswer(f"streamed what cannot be read: {error}") from error
    if not over:
        raise BrokenAnswer("broke its stream off before the message was complete")
    return {**message, "content": [blocks[index] for index in sorted(blocks)]}


def _extend(block: dict[str, Any], delta: dict[str, Any]) -> None:
    match delta.get("type"):
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        case "input_json_delta":
            block["partial_json"] = block.get("partial_json", "") + delta["partial_json"]


class MessageReader:
    """Reader of a streamed message's events."""

    def __init__(self, named: dict[str, str]) -> None:
        self.usage = Usage()
        self._named = named
        self._counts: dict[str, Any] = {}
        self._call: int | None = None
        self._calls = 0
        self._reason: Reason = "stop"
        self._stop: str | None = None

    def read(self, value: dict[str, Any]) -> list[Event]:
        match value.get("type"):
            case "message_start":
                self._count((value.get("message") or {}).get("usage") or {})
                return [Begun(self.usage.prompt_tokens, self.usage.cached_tokens)]
            case "content_block_start":
                block = value.get("content_block") or {}
                if block.get("type") == "tool_use":
                    self._call = self._calls
                    self._calls += 1
                    name = block.get("name") or ""
                    identifier = block.get("id") or ""
                    return [CallBegun(0, self._call, identifier, self._named.get(name, name))]
            case "content_block_delta":
                return self._delta(value.get("delta") or {})
            case "content_block_stop" if self._call is not None:
                ended, self._call = self._call, None
                return [CallEnded(0, ended)]
            case "message_delta":
                self._count(value.get("usage") or {})
                delta = value.get("delta") or {}
                self._reason = reason_of(FINISH_REASONS.get(delta.get("stop_reason") or ""))
                self._stop = delta.get("stop_sequence")
        return []

    def end(self) -> list[Event]:
        return [Finished(0, self._reason, self.usage, stop_string=self._stop)]

    def _delta(self, delta: dict[str, Any]) -> list[Event]:
        match delta.get("type"):
            case "text_delta":
                return [TextDelta(0, delta.get("text") or "")]
            case "thinking_delta":
                return [ReasoningDelta(0, delta.get("thinking") or "")]
            case "input_json_delta" if self._call is not None:
                return [CallArguments(0, self._call, delta.get("partial_json") or "")]
        return []

    def _count(self, usage: dict[str, Any]) -> None:
        self._counts |= {name: count for name, count in usage.items() if count is not None}
        self.usage = token_counts(self._counts).usage()


class MessageWriter:
    """Writer of a message's events: each content block is started, extended and stopped before the next."""

    content_type = EVENTS

    def __init__(self, model: str, *, think: bool) -> None:
        self._model = model
        self._think = think
        self._index = -1
        self._open: str | None = None
        self._finished = Finished(0, "stop", Usage())

    def write(self, event: Event) -> bytes:
        match event:
            case Begun(prompt_tokens, cached_tokens):
                usage = Usage(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)
                message = {
                    **message_head(self._model),
                    "content": [],
                    "stop_reason": None,
                    "stop_sequence": None,
                    "usage": write_usage(usage),
                }
                return _event("message_start", message=message)
            case TextDelta(_, text):
                begun = self._block("text", {"type": "text", "text": ""})
                return begun + self._delta({"type": "text_delta", "text": text})
            case ReasoningDelta(_, text):
                if not self._think:
                    return b""
                thought = {"type": "thinking", "thinking": "", "signature": ""}
                begun = self._block("thinking", thought)
                return begun + self._delta({"type": "thinking_delta", "thinking": text})
            case CallBegun(_, position, identifier, name):
                call = {"type": "tool_use", "id": identifier, "name": name, "input": {}}
                return self._block(f"call {position}", call)
            case CallArguments(_, _, text):
                return self._delta({"type": "input_json_delta", "partial_json": text})
            case CallEnded():
                return self._close()
            case Finished():
                self._finished = event
        return b""

    def end(self) -> bytes:
        usage = write_usage(self._finished.usage)
        ending = _event("message_delta", delta=write_ending(self._finished), usage=usage)
        return self._close() + ending + _event("message_stop")

    def fail(self, refusal: Refusal) -> bytes:
        return _event("error", **write_error(refusal))

    def _block(self, kind: str, block: dict[str, Any]) -> bytes:
        if self._open == kind:
            return b""
        closed = self._close()
        self._index += 1
        self._open = kind
        return closed + _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._delta({"type": "signature_delta", "signature": ""})
        self._open = None
        return signed + _event("content_block_stop", index=self._index)


def _event(kind: str, **values: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), exact_json.dumps({"type": kind, **values}))
