"""OpenAI's responses: items in, items out, and events in the documented order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson

from hud.errors import UsageError
from hud.inference.dialects.chat_completions.codec import MOST_TOP_LOGPROBS, logprobs_json
from hud.inference.dialects.chat_completions.conversation import (
    openai_error,
    read_format,
    read_tool,
    read_tool_choice,
)
from hud.inference.dialects.codec import EVENTS, Family, Refusal
from hud.inference.dialects.efforts import read_effort
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
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest
from hud.inference.dialects.responses.items import read_items
from hud.inference.dialects.turns import Turn, usage_of
from hud.trace import SamplingParams, ToolSpec, Usage, new_id

_UNSUPPORTED = ("background", "conversation", "prompt")


class ResponsesCodec:
    """`POST /responses`."""

    family: Family = "openai"

    def read(self, body: Fields) -> GenerationRequest:
        body.refuse(_UNSUPPORTED, " for this model")
        if body.text("truncation") not in (None, "disabled"):
            raise body.wrong("truncation", "'disabled' for this model")
        tools = _read_tools(body)
        text = body.inner("text") or Fields({})
        reasoning = body.inner("reasoning") or Fields({})
        messages = read_items(body)
        if not messages:
            raise UsageError("input must hold at least one item.")
        instructions = body.text("instructions")
        if instructions:
            messages.insert(0, {"role": "system", "content": instructions})
        return GenerationRequest(
            model=body.needed_text("model"),
            messages=messages,
            tools=tools,
            sampling=SamplingParams(
                max_tokens=body.integer("max_output_tokens", least=1),
                temperature=body.number("temperature", least=0, most=2),
                top_p=body.number("top_p", least=1e-6, most=1),
                reasoning_effort=read_effort(reasoning, "effort"),
            ),
            tool_choice=read_tool_choice(body, tools),
            parallel_calls=body.flag("parallel_tool_calls") is not False,
            format=read_format(text.inner("format")),
            top_logprobs=_top_logprobs(body),
            checkpoint=body.text("checkpoint"),
            stream=bool(body.flag("stream")),
        )

    def whole(
        self, body: Fields, request: GenerationRequest, model: str, turns: Sequence[Turn]
    ) -> dict[str, Any]:
        (turn,) = turns
        output: list[dict[str, Any]] = []
        if turn.reasoning:
            output.append(_reasoning_item(_id("rs"), turn.reasoning))
        if turn.text:
            status = "incomplete" if turn.finished.reason == "length" else "completed"
            output.append(_message_item(_id("msg"), turn.text, turn.tokens, status))
        output.extend(
            _call_item(_id("fc"), call.id, call.name, call.arguments, "completed")
            for call in turn.calls
        )
        return _ended(_response(body, request, model), output, turn.finished)

    def writer(self, body: Fields, request: GenerationRequest, model: str) -> ResponseWriter:
        return ResponseWriter(_response(body, request, model))

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return openai_error(refusal)


class ResponseWriter:
    """Events of a response: it is created and in progress, items are added, told and done, it is completed."""

    content_type = EVENTS

    def __init__(self, response: dict[str, Any]) -> None:
        self.answer = response
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
            case TextDelta(_, text):
                return self._more("message", text)
            case CallBegun(_, _, identifier, name):
                return self._close() + self._begin(_OpenItem("call", _id("fc"), identifier, name))
            case CallArguments(_, _, text):
                return self._more("call", text)
            case CallEnded():
                return self._close()
            case TokensDrawn(_, tokens):
                self._tokens.extend(tokens)
            case Finished():
                self._finished = event
        return b""

    def end(self) -> bytes:
        closed = self._close()
        self.answer = _ended(self.answer, self._output, self._finished)
        return closed + self._event(f"response.{self.answer['status']}", response=self.answer)

    def fail(self, refusal: Refusal) -> bytes:
        kind = "rate_limit_exceeded" if refusal.status == 429 else "server_error"
        failed = {
            **self.answer,
            "status": "failed",
            "error": {"code": kind, "message": refusal.message},
        }
        return self._event("response.failed", response=failed)

    def _more(self, kind: str, text: str) -> bytes:
        begun = b""
        if self._open is None or self._open.kind != kind:
            prefix = {"reasoning": "rs", "message": "msg"}[kind]
            begun = self._close() + self._begin(_OpenItem(kind, _id(prefix)))
        item = self._open
        assert item is not None
        item.text += text
        place = {"item_id": item.id, "output_index": len(self._output)}
        if kind == "call":
            return self._event("response.function_call_arguments.delta", **place, delta=text)
        if kind == "reasoning":
            told = self._event(
                "response.reasoning_text.delta", **place, content_index=0, delta=text
            )
            return begun + told
        tokens, self._tokens = self._tokens, []
        item.tokens.extend(tokens)
        return begun + self._event(
            "response.output_text.delta",
            **place,
            content_index=0,
            delta=text,
            logprobs=logprobs_json(tokens),
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
            part=_part(item.kind, "", []),
        )

    def _close(self) -> bytes:
        item, self._open = self._open, None
        if item is None:
            return b""
        place = {"item_id": item.id, "output_index": len(self._output)}
        done = item.done(self._finished.reason == "length")
        if item.kind == "call":
            told = self._event(
                "response.function_call_arguments.done",
                **place,
                name=item.name,
                arguments=item.text,
            )
        else:
            place["content_index"] = 0
            extra: dict[str, Any] = {}
            if item.kind == "message":
                extra["logprobs"] = logprobs_json(item.tokens)
            name = "output_text" if item.kind == "message" else "reasoning_text"
            told = self._event(f"response.{name}.done", **place, text=item.text, **extra)
            part = _part(item.kind, item.text, item.tokens)
            told += self._event("response.content_part.done", **place, part=part)
        told += self._event("response.output_item.done", output_index=len(self._output), item=done)
        self._output.append(done)
        return told

    def _event(self, kind: str, **values: Any) -> bytes:
        told = {"type": kind, "sequence_number": self._number, **values}
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps(told))


class _OpenItem:
    """An item that is being told."""

    def __init__(self, kind: str, identifier: str, call_id: str = "", name: str = "") -> None:
        self.kind = kind
        self.id = identifier
        self.call_id = call_id
        self.name = name
        self.text = ""
        self.tokens: list[TokenInfo] = []

    def begun(self) -> dict[str, Any]:
        if self.kind == "call":
            return _call_item(self.id, self.call_id, self.name, "", "in_progress")
        if self.kind == "reasoning":
            return {"id": self.id, "type": "reasoning", "summary": [], "content": []}
        return {**_message_item(self.id, "", [], "in_progress"), "content": []}

    def done(self, cut: bool) -> dict[str, Any]:
        if self.kind == "call":
            return _call_item(self.id, self.call_id, self.name, self.text, "completed")
        if self.kind == "reasoning":
            return _reasoning_item(self.id, self.text)
        return _message_item(self.id, self.text, self.tokens, "incomplete" if cut else "completed")


def _read_tools(body: Fields) -> list[ToolSpec]:
    tools = []
    for tool in body.objects("tools"):
        if tool.needed_text("type") != "function":
            raise UsageError(
                f"{tool.place('type')}: tools of type {tool.text('type')!r} are not supported for this model, "
                "only functions."
            )
        tools.append(read_tool(tool))
    return tools


def _top_logprobs(body: Fields) -> int | None:
    most = body.integer("top_logprobs", least=0, most=MOST_TOP_LOGPROBS)
    if "message.output_text.logprobs" in body.texts("include"):
        return most or 0
    return most or None


def _id(prefix: str) -> str:
    return f"{prefix}_{new_id()}"


def _response(body: Fields, request: GenerationRequest, model: str) -> dict[str, Any]:
    """Return a response of which nothing is told yet; it repeats how it was asked for."""
    sampling = request.sampling
    return {
        "id": _id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.text("instructions"),
        "max_output_tokens": sampling.max_tokens,
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_calls,
        "previous_response_id": body.text("previous_response_id"),
        "reasoning": {"effort": sampling.reasoning_effort, "summary": None},
        "store": body.flag("store") is not False,
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "truncation": "disabled",
        "usage": None,
        "metadata": body.get("metadata") or {},
    }


def _ended(
    response: dict[str, Any], output: list[dict[str, Any]], finished: Finished
) -> dict[str, Any]:
    cut = finished.reason in ("length", "content_filter")
    why = {"length": "max_output_tokens", "content_filter": "content_filter"}
    usage = usage_of([finished])
    return {
        **response,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": why[finished.reason]} if cut else None,
        "output": output,
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }


def _part(kind: str, text: str, tokens: list[TokenInfo]) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": logprobs_json(tokens),
    }


def _message_item(
    identifier: str, text: str, tokens: list[TokenInfo], status: str
) -> dict[str, Any]:
    return {
        "id": identifier,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [_part("message", text, tokens)],
    }


def _reasoning_item(identifier: str, text: str) -> dict[str, Any]:
    return {
        "id": identifier,
        "type": "reasoning",
        "summary": [],
        "content": [_part("reasoning", text, [])],
    }


def _call_item(
    identifier: str, call_id: str, name: str, arguments: str, status: str
) -> dict[str, Any]:
    return {
        "id": identifier,
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    }
