"""Streamed responses: joined into one, and written from events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hud import exact_json
from hud.inference.dialects.chat_completions.answer import OVERFLOW, error_code, write_logprobs
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
    TokenInfo,
    TokensDrawn,
)
from hud.inference.retries import AnsweredError, BrokenAnswer
from hud.trace import Usage
from hud_integrations.openai.answer import (
    call_item,
    content_part,
    end_response,
    item_id,
    message_item,
    reasoning_item,
)
from hud_integrations.openai.tools import ClientTool

_OVER = ("response.completed", "response.incomplete", "response.failed")


def joined_response(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the response in a stream's last event.

    Raises `BrokenAnswer` for an incomplete stream and `AnsweredError` for an error event.
    """
    items: dict[int, dict[str, Any]] = {}
    pieces = _Pieces()
    for event in events:
        pieces.take(event)
        kind = event.get("type")
        if kind == "error":
            raise AnsweredError(event.get("code"), str(event.get("message")))
        if kind == "response.output_item.done":
            items[event["output_index"]] = event["item"]
        if kind in _OVER:
            response: dict[str, Any] = event["response"]
            # The items' own events have the reasoning in the form for later requests.
            output = [items[index] for index in sorted(items)] or response.get("output") or []
            return {**response, "output": pieces.completed(output)}
    raise BrokenAnswer("broke its stream off before the response was complete")


class _Pieces:
    """Items as they were added, and their streamed texts, for servers whose last events lack them."""

    def __init__(self) -> None:
        self._added: dict[int, dict[str, Any]] = {}
        self._texts: dict[int, str] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Add an event of the stream."""
        place = event.get("output_index")
        if not isinstance(place, int):
            return
        match event.get("type"):
            case "response.output_item.added":
                self._added[place] = event.get("item") or {}
            case "response.function_call_arguments.delta" | "response.output_text.delta":
                self._texts[place] = self._texts.get(place, "") + (event.get("delta") or "")
            case "response.function_call_arguments.done":
                self._texts[place] = event.get("arguments") or self._texts.get(place, "")

    def completed(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the output, with the streamed arguments of calls without any; the added items if it is empty."""
        items = output or [self._added[place] for place in sorted(self._added)]
        return [self._completed(place, item) for place, item in enumerate(items)]

    def _completed(self, place: int, item: dict[str, Any]) -> dict[str, Any]:
        text = self._texts.get(place)
        if text and item.get("type") == "function_call" and not item.get("arguments"):
            return {**item, "arguments": text, "status": "completed"}
        if text and item.get("type") == "message" and not item.get("content"):
            return {**item, "content": [{"type": "output_text", "text": text, "annotations": []}]}
        return item


class ResponseWriter:
    """Writer of a response's events: created, in progress, items added, extended and done, completed."""

    content_type = EVENTS

    def __init__(
        self, response: dict[str, Any], tools: Mapping[str, ClientTool], *, summary: bool
    ) -> None:
        """`tools` as returned by `client_tools`, `summary` as for `reasoning_item`."""
        self.answer: dict[str, Any] = response
        self._tools = tools
        self._summarizes = summary
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._open: _OpenItem | None = None
        self._tokens: list[TokenInfo] = []
        self._finished = Finished(0, "stop", Usage())

    def write(self, event: Event) -> bytes:
        match event:
            case Begun():
                return self._event("response.created", response=self.answer) + self._event(
                    "response.in_progress", response=self.answer
                )
            case ReasoningDelta(_, text):
                return self._more("reasoning", text)
            case ThoughtSealed(_, seal):
                if self._open is not None:
                    self._open.seal = seal
            case TextDelta(_, text):
                return self._more("message", text)
            case CallBegun(_, _, identifier, name):
                return self._close() + self._begin(
                    _OpenItem("call", item_id("fc"), identifier, name, self._tools.get(name))
                )
            case CallArguments(_, _, text):
                return self._more("call", text)
            case CallEnded():
                if self._open is not None:
                    self._open.complete = True
                return self._close()
            case TokensDrawn(_, tokens):
                self._tokens.extend(tokens)
            case Finished():
                self._finished = event
        return b""

    def end(self) -> bytes:
        closed = self._close()
        self.answer = end_response(self.answer, self._output, self._finished)
        return closed + self._event(f"response.{self.answer['status']}", response=self.answer)

    def fail(self, refusal: Refusal) -> bytes:
        failed = {
            **self.answer,
            "status": "failed",
            "error": {
                "code": error_code(refusal) or "server_error",
                "message": refusal.sentence(OVERFLOW),
            },
        }
        return self._event("response.failed", response=failed)

    def _more(self, kind: str, text: str) -> bytes:
        begun = b""
        if self._open is None or self._open.kind != kind:
            prefix = {"reasoning": "rs", "message": "msg"}[kind]
            begun = self._close() + self._begin(_OpenItem(kind, item_id(prefix)))
        item = self._open
        assert item is not None
        item.text += text
        place = {"item_id": item.id, "output_index": len(self._output)}
        if kind == "call" and item.tool is not None and item.tool.kind != "function":
            return b""  # It has the text of an argument, or no text.
        if kind == "call":
            return self._event("response.function_call_arguments.delta", **place, delta=text)
        if kind == "reasoning":
            event = self._event(
                "response.reasoning_text.delta", **place, content_index=0, delta=text
            )
            return begun + event
        tokens, self._tokens = self._tokens, []
        item.tokens.extend(tokens)
        return begun + self._event(
            "response.output_text.delta",
            **place,
            content_index=0,
            delta=text,
            logprobs=write_logprobs(tokens),
        )

    def _begin(self, item: _OpenItem) -> bytes:
        self._open = item
        index = len(self._output)
        added = self._event("response.output_item.added", output_index=index, item=item.begun())
        if item.kind == "call":
            return added
        return added + self._event(
            "response.content_part.added",
            item_id=item.id,
            output_index=index,
            content_index=0,
            part=content_part(item.kind, "", []),
        )

    def _close(self) -> bytes:
        item, self._open = self._open, None
        if item is None:
            return b""
        place = {"item_id": item.id, "output_index": len(self._output)}
        done = item.done(self._finished.reason == "length", summary=self._summarizes)
        if item.kind == "call":
            events = self._call_done(item, done, place)
        else:
            place["content_index"] = 0
            extra: dict[str, Any] = {}
            if item.kind == "message":
                extra["logprobs"] = write_logprobs(item.tokens)
            name = "output_text" if item.kind == "message" else "reasoning_text"
            events = self._event(f"response.{name}.done", **place, text=item.text, **extra)
            part = content_part(item.kind, item.text, item.tokens)
            events += self._event("response.content_part.done", **place, part=part)
            if item.kind == "reasoning" and self._summarizes:
                events += self._summary(item)
        events += self._event(
            "response.output_item.done", output_index=len(self._output), item=done
        )
        self._output.append(done)
        return events

    def _summary(self, item: _OpenItem) -> bytes:
        """Return the events of a summary, which is written when its thought has ended."""
        place = {"item_id": item.id, "output_index": len(self._output), "summary_index": 0}
        part, begun = ({"type": "summary_text", "text": text} for text in (item.text, ""))
        name = "response.reasoning_summary"
        return b"".join(
            (
                self._event(f"{name}_part.added", **place, part=begun),
                self._event(f"{name}_text.delta", **place, delta=item.text),
                self._event(f"{name}_text.done", **place, text=item.text),
                self._event(f"{name}_part.done", **place, part=part),
            )
        )

    def _call_done(self, item: _OpenItem, done: dict[str, Any], place: dict[str, Any]) -> bytes:
        match done["type"]:
            case "custom_tool_call":
                name = "response.custom_tool_call_input"
                delta = self._event(f"{name}.delta", **place, delta=done["input"])
                return delta + self._event(f"{name}.done", **place, input=done["input"])
            case "local_shell_call":
                return b""
        return self._event(
            "response.function_call_arguments.done",
            **place,
            name=done["name"],
            arguments=item.text,
        )

    def _event(self, kind: str, **values: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **values}
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), exact_json.dumps(event))


class _OpenItem:
    """An item that is being written."""

    def __init__(
        self,
        kind: str,
        identifier: str,
        call_id: str = "",
        name: str = "",
        tool: ClientTool | None = None,
    ) -> None:
        self.tool = tool
        self.kind = kind
        self.id = identifier
        self.call_id = call_id
        self.name = name
        self.text = ""
        self.seal = ""
        self.tokens: list[TokenInfo] = []
        self.complete = False
        """False for a call that the end of its turn cut off."""

    def begun(self) -> dict[str, Any]:
        if self.kind == "call":
            return call_item(self.id, self.call_id, self.name, "", "in_progress", self.tool)
        if self.kind == "reasoning":
            return {"id": self.id, "type": "reasoning", "summary": [], "content": []}
        return {**message_item(self.id, "", [], "in_progress"), "content": []}

    def done(self, cut: bool, *, summary: bool) -> dict[str, Any]:
        if self.kind == "call":
            status = "completed" if self.complete else "incomplete"
            return call_item(self.id, self.call_id, self.name, self.text, status, self.tool)
        if self.kind == "reasoning":
            return reasoning_item(self.id, self.text, self.seal, summary=summary)
        return message_item(self.id, self.text, self.tokens, "incomplete" if cut else "completed")
