"""A model behind Anthropic's messages."""

from __future__ import annotations

from typing import Any

import orjson

from hud.errors import UsageError
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
)
from hud.inference.dialects.request import GenerationRequest
from hud.platform.gateway.ledger import Meter
from hud.platform.gateway.upstream.adapter import (
    data_url,
    refuse_choices,
    refuse_logprobs,
    refuse_tokens,
)
from hud.trace import ChatMessage, Usage

DEFAULT_TOKENS = 4096
"""The dialect wants a limit; most that every model of it can write."""
_REASONS: dict[str, Reason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


class AnthropicAdapter:
    """Asks for messages."""

    action = "messages"

    def body(self, model: str, request: GenerationRequest) -> dict[str, Any]:
        refuse_tokens(model, request)
        refuse_logprobs(model, request)
        refuse_choices(model, request)
        sampling = request.sampling
        if sampling.seed is not None:
            raise UsageError(f"seed is not supported for {model!r}. Leave it out.")
        if request.format is not None and request.format.schema is None:
            raise UsageError(
                f"{model!r} writes JSON by a schema only: give response_format a json_schema."
            )
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": sampling.max_tokens or DEFAULT_TOKENS,
            "messages": _messages(request.messages),
            "stream": True,
        }
        system = "\n\n".join(
            _text(message) for message in request.messages if message["role"] == "system"
        )
        wishes = {
            "system": system or None,
            # Others draw from up to 2.
            "temperature": None if sampling.temperature is None else min(sampling.temperature, 1.0),
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or None,
            "stop_sequences": list(sampling.stop) or None,
        }
        body.update({name: value for name, value in wishes.items() if value is not None})
        if request.tools:
            body["tools"] = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "input_schema": {"type": "object", **tool.parameters},
                }
                for tool in request.tools
            ]
            body["tool_choice"] = _choice(request)
        if request.format is not None:
            body["output_config"] = {
                "format": {"type": "json_schema", "schema": request.format.schema}
            }
        return body

    def reader(self, request: GenerationRequest, meter: Meter) -> AnthropicReader:
        del request
        return AnthropicReader(meter)


class AnthropicReader:
    """Reads the events of a message."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._call: int | None = None
        self._calls = 0
        self._reason: Reason = "stop"
        self._stop: str | None = None

    def take(self, value: dict[str, Any]) -> list[Event]:
        match value.get("type"):
            case "message_start":
                self._count((value.get("message") or {}).get("usage") or {})
                return [Begun(self._meter.prompt_tokens, self._meter.cached_tokens)]
            case "content_block_start":
                block = value.get("content_block") or {}
                if block.get("type") == "tool_use":
                    self._call = self._calls
                    self._calls += 1
                    return [
                        CallBegun(0, self._call, block.get("id") or "", block.get("name") or "")
                    ]
            case "content_block_delta":
                return self._delta(value.get("delta") or {})
            case "content_block_stop" if self._call is not None:
                ended, self._call = self._call, None
                return [CallEnded(0, ended)]
            case "message_delta":
                self._count(value.get("usage") or {})
                delta = value.get("delta") or {}
                self._reason = _REASONS.get(delta.get("stop_reason") or "", "stop")
                self._stop = delta.get("stop_sequence")
        return []

    def end(self) -> list[Event]:
        usage = Usage(
            prompt_tokens=self._meter.prompt_tokens,
            completion_tokens=self._meter.completion_tokens,
            cached_tokens=self._meter.cached_tokens,
        )
        return [Finished(0, self._reason, usage, stop_string=self._stop)]

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
        read = usage.get("cache_read_input_tokens") or 0
        written = usage.get("cache_creation_input_tokens") or 0
        if usage.get("input_tokens") is not None:
            self._meter.prompt_tokens = usage["input_tokens"] + read + written
            self._meter.cached_tokens = read
        if usage.get("output_tokens") is not None:
            self._meter.completion_tokens = usage["output_tokens"]


def _choice(request: GenerationRequest) -> dict[str, Any]:
    choice = request.tool_choice
    if choice.mode == "none":
        return {"type": "none"}
    told: dict[str, Any] = {"type": "any" if choice.mode == "required" else "auto"}
    if len(choice.names) == 1:
        told = {"type": "tool", "name": choice.names[0]}
    if not request.parallel_calls:
        told["disable_parallel_tool_use"] = True
    return told


def _messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Return the conversation as turns that alternate: what follows upon one another in a role is one turn."""
    told: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = _blocks(message)
        if not blocks:
            continue
        if told and told[-1]["role"] == role:
            told[-1]["content"].extend(blocks)
        else:
            told.append({"role": role, "content": blocks})
    return told


def _blocks(message: ChatMessage) -> list[dict[str, Any]]:
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
        return [{**result, "content": _parts(message) or ""}]
    blocks = _parts(message)
    for call in message.get("tool_calls") or []:
        function = call["function"]
        blocks.append(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": function["name"],
                "input": _object(function["arguments"]),
            }
        )
    return blocks


def _parts(message: ChatMessage) -> list[dict[str, Any]]:
    content = message.get("content")
    if not content:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    return [
        {"type": "text", "text": part["text"]}
        if part["type"] == "text"
        else {"type": "image", "source": _source(part["image_url"]["url"])}
        for part in content
    ]


def _source(url: str) -> dict[str, Any]:
    inline = data_url(url)
    if inline is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": inline[0], "data": inline[1]}


def _object(arguments: str) -> dict[str, Any]:
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


def _text(message: ChatMessage) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")
