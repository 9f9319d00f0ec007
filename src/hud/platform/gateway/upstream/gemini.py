"""A model behind Gemini's generateContent."""

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
from hud.trace import ChatMessage, Usage, new_id

_REASONS: dict[str, Reason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "BLOCKLIST": "content_filter",
}
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


class GeminiAdapter:
    """Asks for content."""

    action = "streamGenerateContent?alt=sse"

    def body(self, model: str, request: GenerationRequest) -> dict[str, Any]:
        refuse_tokens(model, request)
        refuse_logprobs(model, request)
        refuse_choices(model, request)
        sampling = request.sampling
        config: dict[str, Any] = {
            "maxOutputTokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "topP": sampling.top_p,
            "topK": sampling.top_k or None,
            "stopSequences": list(sampling.stop) or None,
            "seed": sampling.seed,
        }
        if request.format is not None:
            config["responseMimeType"] = "application/json"
            config["responseJsonSchema"] = request.format.schema
        body: dict[str, Any] = {
            "contents": _contents(request.messages),
            "generationConfig": {
                name: value for name, value in config.items() if value is not None
            },
        }
        system = [
            part
            for message in request.messages
            if message["role"] == "system"
            for part in _parts(message)
        ]
        if system:
            body["systemInstruction"] = {"parts": system}
        if request.tools:
            body["tools"] = [
                {
                    "functionDeclarations": [
                        {
                            "name": tool.name,
                            "description": tool.description,
                            "parametersJsonSchema": tool.parameters,
                        }
                        for tool in request.tools
                    ]
                }
            ]
            calling: dict[str, Any] = {"mode": _MODES[request.tool_choice.mode]}
            if request.tool_choice.names:
                calling["allowedFunctionNames"] = list(request.tool_choice.names)
            body["toolConfig"] = {"functionCallingConfig": calling}
        return body

    def reader(self, request: GenerationRequest, meter: Meter) -> GeminiReader:
        del request
        return GeminiReader(meter)


class GeminiReader:
    """Reads the partial answers of a stream."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._begun = False
        self._calls = 0
        self._reason: Reason = "stop"

    def take(self, value: dict[str, Any]) -> list[Event]:
        usage = value.get("usageMetadata") or {}
        if usage:
            self._meter.prompt_tokens = usage.get("promptTokenCount") or 0
            self._meter.completion_tokens = (usage.get("candidatesTokenCount") or 0) + (
                usage.get("thoughtsTokenCount") or 0
            )
            self._meter.cached_tokens = usage.get("cachedContentTokenCount") or 0
        events: list[Event] = []
        if not self._begun:
            self._begun = True
            events.append(Begun(self._meter.prompt_tokens))
        if (value.get("promptFeedback") or {}).get("blockReason"):
            self._reason = "content_filter"
        for candidate in (value.get("candidates") or [])[:1]:
            for part in (candidate.get("content") or {}).get("parts") or []:
                events += self._part(part)
            if candidate.get("finishReason"):
                self._reason = _REASONS.get(candidate["finishReason"], "stop")
        return events

    def end(self) -> list[Event]:
        reason: Reason = self._reason
        if self._calls and reason == "stop":
            reason = "tool_calls"
        usage = Usage(
            prompt_tokens=self._meter.prompt_tokens,
            completion_tokens=self._meter.completion_tokens,
            cached_tokens=self._meter.cached_tokens,
        )
        begun: list[Event] = [] if self._begun else [Begun()]
        return [*begun, Finished(0, reason, usage)]

    def _part(self, part: dict[str, Any]) -> list[Event]:
        call = part.get("functionCall")
        if isinstance(call, dict):
            place = self._calls
            self._calls += 1
            arguments = orjson.dumps(call.get("args") or {}).decode()
            identifier = call.get("id") or f"call_{new_id()[:12]}"
            return [
                CallBegun(0, place, identifier, call.get("name") or ""),
                CallArguments(0, place, arguments),
                CallEnded(0, place),
            ]
        text = part.get("text")
        if not text:
            return []
        return [ReasoningDelta(0, text) if part.get("thought") else TextDelta(0, text)]


def _contents(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    names: dict[str, str] = {}
    told: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system":
            continue
        role = "model" if message["role"] == "assistant" else "user"
        if message["role"] == "tool":
            identifier = message["tool_call_id"]
            response = {
                "id": identifier,
                "name": names.get(identifier, identifier),
                "response": {"result": _text(message)},
            }
            parts = [{"functionResponse": response}]
        else:
            parts = _parts(message)
        for call in message.get("tool_calls") or []:
            function = call["function"]
            names[call["id"]] = function["name"]
            arguments = _object(function["arguments"])
            parts.append(
                {"functionCall": {"id": call["id"], "name": function["name"], "args": arguments}}
            )
        if not parts:
            continue
        if told and told[-1]["role"] == role:
            told[-1]["parts"].extend(parts)
        else:
            told.append({"role": role, "parts": parts})
    return told


def _parts(message: ChatMessage) -> list[dict[str, Any]]:
    content = message.get("content")
    if not content:
        return []
    if isinstance(content, str):
        return [{"text": content}]
    parts: list[dict[str, Any]] = []
    for part in content:
        if part["type"] == "text":
            parts.append({"text": part["text"]})
            continue
        inline = data_url(part["image_url"]["url"])
        if inline is None:
            raise UsageError("This model takes images inline only: give a data: URL.")
        parts.append({"inlineData": {"mimeType": inline[0], "data": inline[1]}})
    return parts


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
