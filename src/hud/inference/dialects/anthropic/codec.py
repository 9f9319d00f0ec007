"""Anthropic's messages: how they read, and how turns are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from hud.errors import UsageError
from hud.inference.dialects.chat_completions.conversation import (
    call_message,
    checked_choice,
    image_part,
    join_parts,
    read_stops,
    tool_spec,
)
from hud.inference.dialects.codec import EVENTS, Family, Refusal
from hud.inference.dialects.efforts import effort_of_budget, read_effort
from hud.inference.dialects.events import (
    Begun,
    CallArguments,
    CallBegun,
    CallEnded,
    Event,
    Finished,
    ReasoningDelta,
    TextDelta,
)
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest, OutputFormat, ToolChoice
from hud.inference.dialects.turns import Turn, usage_of
from hud.trace import ChatMessage, ReasoningEffort, SamplingParams, ToolSpec, Usage, new_id

_UNSUPPORTED = ("mcp_servers", "container", "context_management")
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_STOPS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


class AnthropicCodec:
    """`POST /v1/messages`."""

    family: Family = "anthropic"

    def read(self, body: Fields) -> GenerationRequest:
        body.refuse(_UNSUPPORTED, " for this model")
        tools = [_read_tool(tool) for tool in body.objects("tools")]
        choice = body.inner("tool_choice")
        parallel = choice is None or choice.flag("disable_parallel_tool_use") is not True
        thinking = body.inner("thinking")
        most = body.integer("max_tokens", least=1)
        messages = read_conversation(body)
        if not any(message["role"] != "system" for message in messages):
            raise UsageError("messages must hold at least one message.")
        return GenerationRequest(
            model=body.needed_text("model"),
            messages=messages,
            tools=tools,
            sampling=SamplingParams(
                max_tokens=most,
                temperature=body.number("temperature", least=0, most=1),
                top_p=body.number("top_p", least=1e-6, most=1),
                top_k=body.integer("top_k", least=0),
                stop=read_stops(body, "stop_sequences"),
                reasoning_effort=read_effort(body.inner("output_config") or Fields({}), "effort"),
            ),
            tool_choice=_read_choice(choice, tools),
            parallel_calls=parallel,
            format=_read_format(body),
            checkpoint=body.text("checkpoint"),
            stream=bool(body.flag("stream")),
            think=None if thinking is None else thinking.text("type") != "disabled",
            budgeted_effort=None if thinking is None else _read_thinking(thinking),
        )

    def whole(
        self, body: Fields, request: GenerationRequest, model: str, turns: Sequence[Turn]
    ) -> dict[str, Any]:
        (turn,) = turns
        content: list[dict[str, Any]] = []
        if turn.reasoning and request.think is not False:
            content.append({"type": "thinking", "thinking": turn.reasoning, "signature": ""})
        if turn.text:
            content.append({"type": "text", "text": turn.text, "citations": None})
        content.extend(
            {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": orjson.loads(call.arguments or "{}"),
            }
            for call in turn.calls
        )
        return {
            **_head(model),
            "content": content,
            **_ending(turn.finished),
            "usage": _usage(usage_of([turn.finished])),
        }

    def writer(self, body: Fields, request: GenerationRequest, model: str) -> MessageWriter:
        return MessageWriter(model, think=request.think is not False)

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return anthropic_error(refusal)


class MessageWriter:
    """Events of a message: each block is begun, told and stopped before the next one."""

    content_type = EVENTS

    def __init__(self, model: str, *, think: bool) -> None:
        self._model = model
        self._think = think
        self._index = -1
        self._open: str | None = None
        self._finished: Finished | None = None

    def write(self, event: Event) -> bytes:
        match event:
            case Begun(prompt_tokens, cached_tokens):
                usage = _usage(Usage(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens))
                message = {
                    **_head(self._model),
                    "content": [],
                    "stop_reason": None,
                    "stop_sequence": None,
                    "usage": usage,
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
        finished = self._finished or Finished(0, "stop", Usage())
        return b"".join(
            (
                self._close(),
                _event("message_delta", delta=_ending(finished), usage=_usage(finished.usage)),
                _event("message_stop"),
            )
        )

    def fail(self, refusal: Refusal) -> bytes:
        return _event("error", **anthropic_error(refusal))

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


def anthropic_error(refusal: Refusal) -> dict[str, Any]:
    """Return an error as Anthropic's clients read it."""
    kind = _KINDS.get(refusal.status) or (
        "api_error" if refusal.status >= 500 else "invalid_request_error"
    )
    return {
        "type": "error",
        "error": {"type": kind, "message": refusal.message},
        "detail": refusal.message,
    }


def read_conversation(body: Fields) -> list[ChatMessage]:
    """Return the system prompt and the messages as chat messages."""
    messages: list[ChatMessage] = []
    system = body.get("system")
    if system is not None:
        text = (
            system
            if isinstance(system, str)
            else "\n".join(part.text("text") or "" for part in body.objects("system"))
        )
        messages.append({"role": "system", "content": text})
    for message in body.objects("messages"):
        role = message.needed_text("role")
        if role == "user":
            messages.extend(_read_user(message))
        elif role == "assistant":
            messages.append(_read_assistant(message))
        elif role == "system":
            messages.append({"role": "system", "content": _text_or_parts(message)})
        else:
            raise message.wrong("role", "'user' or 'assistant'")
    return messages


def _read_user(message: Fields) -> list[ChatMessage]:
    """Tool results are messages of their own to a model; they come before what the user says with them."""
    if isinstance(message.get("content"), str):
        return [{"role": "user", "content": message.get("content")}]
    results: list[ChatMessage] = []
    parts: list[dict[str, Any]] = []
    for block in message.objects("content"):
        if block.text("type") == "tool_result":
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": block.needed_text("tool_use_id"),
                    "content": _text_or_parts(block) or "",
                }
            )
        else:
            parts.append(_read_part(block))
    return [*results, {"role": "user", "content": join_parts(parts)}] if parts else results


def _read_assistant(message: Fields) -> ChatMessage:
    if isinstance(message.get("content"), str):
        return {"role": "assistant", "content": message.get("content")}
    read: ChatMessage = {"role": "assistant", "content": None}
    calls: list[dict[str, Any]] = []
    for block in message.objects("content"):
        match block.needed_text("type"):
            case "text":
                read["content"] = (read["content"] or "") + (block.text("text") or "")
            case "tool_use":
                given = block.inner("input")
                arguments = orjson.dumps({} if given is None else given.values).decode()
                calls.append(
                    call_message(block.needed_text("id"), block.needed_text("name"), arguments)
                )
            case "thinking":
                read["reasoning_content"] = block.text("thinking") or ""
            case "redacted_thinking":
                pass
            case other:
                raise UsageError(
                    f"{block.place('type')}: content of type {other!r} is not supported here."
                )
    if calls:
        read["tool_calls"] = calls
    return read


def _text_or_parts(block: Fields) -> Any:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content
    return join_parts([_read_part(part) for part in block.objects("content")])


def _read_part(block: Fields) -> dict[str, Any]:
    kind = block.needed_text("type")
    if kind == "text":
        return {"type": "text", "text": block.text("text") or ""}
    source = block.inner("source")
    if kind == "image" and source is not None:
        if source.text("type") == "url":
            return image_part(source.needed_text("url"))
        data = source.needed_text("data")
        return image_part(f"data:{source.text('media_type') or 'image/png'};base64,{data}")
    raise UsageError(f"{block.place('type')}: content of type {kind!r} is not supported here.")


def _read_tool(tool: Fields) -> ToolSpec:
    kind = tool.text("type")
    if kind not in (None, "custom"):
        raise UsageError(
            f"{tool.place('type')}: tools of type {kind!r} are not supported here, only custom ones."
        )
    schema = tool.inner("input_schema")
    return tool_spec(
        tool.needed_text("name"),
        tool.text("description") or "",
        None if schema is None else schema.values,
    )


def _read_choice(choice: Fields | None, tools: list[ToolSpec]) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    match choice.needed_text("type"):
        case "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "any":
            return checked_choice(ToolChoice("required"), tools)
        case "tool":
            return checked_choice(ToolChoice("required", (choice.needed_text("name"),)), tools)
    raise choice.wrong("type", "'auto', 'any', 'tool' or 'none'")


def _read_thinking(thinking: Fields) -> ReasoningEffort | None:
    if thinking.text("type") == "disabled":
        return "none"
    return effort_of_budget(thinking.integer("budget_tokens", least=1))


def _read_format(body: Fields) -> OutputFormat | None:
    given = body.inner("output_format")
    config = body.inner("output_config")
    if given is None and config is not None:
        given = config.inner("format")
    if given is None:
        return None
    if given.text("type") != "json_schema":
        raise given.wrong("type", "'json_schema'")
    schema = given.inner("schema")
    return OutputFormat(None if schema is None else schema.values)


def _event(kind: str, **values: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps({"type": kind, **values}))


def _head(model: str) -> dict[str, Any]:
    return {"id": f"msg_{new_id()}", "type": "message", "role": "assistant", "model": model}


def _ending(finished: Finished) -> dict[str, Any]:
    if finished.stop_string is not None and finished.reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": finished.stop_string}
    return {"stop_reason": _STOPS[finished.reason], "stop_sequence": None}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        # What came from the cache is counted beside the rest.
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens),
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }
