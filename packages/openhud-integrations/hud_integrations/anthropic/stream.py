"""Streamed messages: read into events, joined into one response, and written from events."""

from __future__ import annotations

from typing import Any

from hud import exact_json
from hud.inference.dialects.codec import EVENTS, Refusal
from hud.inference.dialects.events import (
    Begun,
    CallArguments,
    CallBegun,
    CallEnded,
    Event,
    Finished,
    ReasoningDelta,
    TextDelta,
    ThoughtSealed,
    reason_of,
)
from hud.inference.dialects.received_calls import CallEvents, ReceivedCall
from hud.inference.dialects.tool_calls import (
    CUT_OFF,
    MALFORMED,
    arguments_in,
    final_reason,
)
from hud.inference.retries import BrokenAnswer
from hud.trace import Usage, parsed_arguments
from hud_integrations.anthropic.answer import (
    FINISH_REASONS,
    message_head,
    read_stop,
    token_counts,
    write_ending,
    write_error,
    write_usage,
)

BROKE_OFF = "broke its stream off before the message was complete"


def joined_message(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message of a stream's events. Raises `BrokenAnswer` for a stream that ended early.

    A second start with an index begins another block: some servers number all blocks 0.
    """
    message: dict[str, Any] = {}
    blocks: list[dict[str, Any]] = []
    by_index: dict[int, dict[str, Any]] = {}
    over = False
    try:
        for event in events:
            match event.get("type"):
                case "message_start":
                    message = dict(event["message"])
                case "content_block_start":
                    by_index[event["index"]] = dict(event["content_block"])
                    blocks.append(by_index[event["index"]])
                case "content_block_delta":
                    _extend(by_index[event["index"]], event["delta"])
                case "message_delta":
                    counts = event.get("usage") or {}
                    reported = {name: count for name, count in counts.items() if count is not None}
                    message |= {**event["delta"], "usage": {**message.get("usage", {}), **reported}}
                case "message_stop":
                    over = True
    except (KeyError, TypeError, AttributeError) as error:
        raise BrokenAnswer(f"streamed what cannot be read: {error}") from error
    if not over:
        raise BrokenAnswer(BROKE_OFF)
    return {**message, "content": [_block(block) for block in blocks]}


def _block(block: dict[str, Any]) -> dict[str, Any]:
    """Return a joined block: the pieces of a call's input, if there are any, are its input."""
    text = block.pop("partial_json", "")
    return {**block, "input": parsed_arguments(text)} if text.strip() else block


def _extend(block: dict[str, Any], delta: dict[str, Any]) -> None:
    match delta.get("type"):
        case "text_delta":
            block["text"] = (block.get("text") or "") + delta["text"]
        case "thinking_delta":
            block["thinking"] = (block.get("thinking") or "") + delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        case "input_json_delta":
            block["partial_json"] = block.get("partial_json", "") + (delta["partial_json"] or "")


class MessageReader:
    """Reader of a streamed message's events."""

    def __init__(self, named: dict[str, str]) -> None:
        self.usage = Usage()
        self._counts: dict[str, Any] = {}
        self._calls = CallEvents(0, named)
        self._call: ReceivedCall | None = None
        """The last call; it ends with the next block, or with the message, whose reason tells if it was cut off."""
        self._input: Any = None
        """The call's input in its first event; pieces replace it."""
        self._stop_reason: str | None = None
        self._stop: str | None = None

    def read(self, value: dict[str, Any]) -> list[Event]:
        match value.get("type"):
            case "message_start":
                self._count((value.get("message") or {}).get("usage") or {})
                return [Begun(self.usage.prompt_tokens, self.usage.cached_tokens)]
            case "content_block_start":
                return self._begin(value.get("index"), value.get("content_block") or {})
            case "content_block_delta":
                return self._delta(value.get("index"), value.get("delta") or {})
            case "message_delta":
                self._count(value.get("usage") or {})
                delta = value.get("delta") or {}
                self._stop_reason = delta.get("stop_reason") or self._stop_reason
                self._stop = delta.get("stop_sequence")
        return []

    def end(self) -> list[Event]:
        stop = read_stop(self._stop_reason)
        if not stop:
            raise BrokenAnswer(BROKE_OFF)
        reason = FINISH_REASONS.get(stop, stop)
        events = self._end_call(cut=reason in CUT_OFF)
        reason = final_reason(reason, calls=self._calls.ended > 0)
        malformed = reason == MALFORMED
        finished = Finished(
            0, reason_of(reason), self.usage, stop_string=self._stop, malformed=malformed
        )
        return [*events, finished]

    def _begin(self, index: Any, block: dict[str, Any]) -> list[Event]:
        events = self._end_call(cut=False)
        match block.get("type"):
            case "tool_use":
                self._call = ReceivedCall(index)
                self._call.take(block.get("id") or "", block.get("name") or "")
                self._input = arguments_in(block, "input")
            case "text" if block.get("text"):
                events.append(TextDelta(0, block["text"]))
            case "thinking" if block.get("thinking"):
                events.append(ReasoningDelta(0, block["thinking"]))
        return events

    def _delta(self, index: Any, delta: dict[str, Any]) -> list[Event]:
        match delta.get("type"):
            case "text_delta":
                return [*self._end_call(cut=False), TextDelta(0, delta.get("text") or "")]
            case "thinking_delta":
                return [*self._end_call(cut=False), ReasoningDelta(0, delta.get("thinking") or "")]
            case "input_json_delta":
                if self._call is None or self._call.index != index:
                    raise BrokenAnswer("streamed arguments of no open tool call")
                self._call.take(arguments=delta.get("partial_json"))
                return self._calls.more(self._call)
        return []

    def _end_call(self, *, cut: bool) -> list[Event]:
        call, self._call = self._call, None
        if call is None:
            return []
        if not call.text.strip():
            # Truncated calls have an empty object, too.
            call.take(arguments=self._input if self._input or not cut else None)
        return self._calls.end(call, cut=cut)

    def _count(self, usage: dict[str, Any]) -> None:
        self._counts |= {name: count for name, count in usage.items() if count is not None}
        self.usage = token_counts(self._counts).usage()


class MessageWriter:
    """Writer of a message's events: each content block is started, extended and stopped before the next."""

    content_type = EVENTS
    answer = None

    def __init__(self, model: str, response_id: str, *, think: bool) -> None:
        self._model = model
        self._response_id = response_id
        self._seal = ""
        self._think = think
        self._index = -1
        self._open: str | None = None
        self._finished = Finished(0, "stop", Usage())

    def write(self, event: Event) -> bytes:
        match event:
            case Begun(prompt_tokens, cached_tokens):
                usage = Usage(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)
                message = {
                    **message_head(self._model, self._response_id),
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
            case ThoughtSealed(_, seal):
                self._seal = seal
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
            signed = self._delta({"type": "signature_delta", "signature": self._seal})
        self._open = None
        return signed + _event("content_block_stop", index=self._index)


def _event(kind: str, **values: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), exact_json.dumps({"type": kind, **values}))
