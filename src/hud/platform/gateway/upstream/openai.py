"""A model behind chat completions."""

from __future__ import annotations

from typing import Any

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
)
from hud.inference.dialects.request import GenerationRequest
from hud.platform.gateway.ledger import Meter
from hud.platform.gateway.upstream.adapter import refuse_tokens
from hud.trace import Usage, new_id

_REASONS: dict[str, Reason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


class OpenAIAdapter:
    """Asks chat completions."""

    action = "chat/completions"

    def body(self, model: str, request: GenerationRequest) -> dict[str, Any]:
        refuse_tokens(model, request)
        sampling, choice = request.sampling, request.tool_choice
        body: dict[str, Any] = {
            "model": model,
            "messages": request.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        wishes = {
            "max_completion_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "stop": list(sampling.stop) or None,
            "seed": sampling.seed,
            "n": request.choices if request.choices > 1 else None,
            "reasoning_effort": sampling.reasoning_effort,
        }
        body.update({name: value for name, value in wishes.items() if value is not None})
        if request.tools:
            body["tools"] = [
                {"type": "function", "function": tool.function()} for tool in request.tools
            ]
            if len(choice.names) == 1:
                body["tool_choice"] = {"type": "function", "function": {"name": choice.names[0]}}
            elif choice.mode != "auto":
                body["tool_choice"] = choice.mode
            if not request.parallel_calls:
                body["parallel_tool_calls"] = False
        if request.format is not None:
            described = {"name": request.format.name, "schema": request.format.schema}
            body["response_format"] = (
                {"type": "json_object"}
                if request.format.schema is None
                else {"type": "json_schema", "json_schema": described}
            )
        if request.top_logprobs is not None:
            body["logprobs"] = True
            body["top_logprobs"] = request.top_logprobs
        return body

    def reader(self, request: GenerationRequest, meter: Meter) -> OpenAIReader:
        return OpenAIReader(request.choices, meter)


class OpenAIReader:
    """Reads the chunks of a chat completion."""

    def __init__(self, choices: int, meter: Meter) -> None:
        self._choices = choices
        self._meter = meter
        self._begun = False
        self._open: dict[int, int] = {}
        """Position of the call that each choice is telling."""
        self._calls: dict[tuple[int, int], int] = {}
        self._reasons: dict[int, Reason] = {}
        self._refusals: dict[int, str] = {}

    def take(self, value: dict[str, Any]) -> list[Event]:
        events: list[Event] = []
        if not self._begun:
            self._begun = True
            events.append(Begun())
        usage = value.get("usage")
        if isinstance(usage, dict):
            self._meter.prompt_tokens = usage.get("prompt_tokens") or 0
            self._meter.completion_tokens = usage.get("completion_tokens") or 0
            details = usage.get("prompt_tokens_details") or {}
            self._meter.cached_tokens = details.get("cached_tokens") or 0
        for choice in value.get("choices") or []:
            events += self._choice(choice)
        return events

    def end(self) -> list[Event]:
        events: list[Event] = [] if self._begun else [Begun()]
        for choice in range(self._choices):
            events += self._end_call(choice)
            first = choice == 0
            usage = Usage(
                prompt_tokens=self._meter.prompt_tokens,
                # Counted for all choices together.
                completion_tokens=self._meter.completion_tokens if first else 0,
                cached_tokens=self._meter.cached_tokens,
            )
            reason = self._reasons.get(choice, "stop")
            refusal = self._refusals.get(choice)
            events.append(Finished(choice, reason, usage, refusal=refusal))
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
        if choice.get("finish_reason"):
            self._reasons[place] = _REASONS.get(choice["finish_reason"], "stop")
        return events

    def _call(self, place: int, call: dict[str, Any]) -> list[Event]:
        events: list[Event] = []
        key, function = (place, call.get("index") or 0), call.get("function") or {}
        if key not in self._calls:
            events += self._end_call(place)
            position = sum(choice == place for choice, _ in self._calls)
            self._calls[key] = self._open[place] = position
            identifier = call.get("id") or f"call_{new_id()[:12]}"
            events.append(CallBegun(place, position, identifier, function.get("name") or ""))
        if function.get("arguments"):
            events.append(CallArguments(place, self._calls[key], function["arguments"]))
        return events

    def _end_call(self, place: int) -> list[Event]:
        position = self._open.pop(place, None)
        return [] if position is None else [CallEnded(place, position)]


def _info(token: dict[str, Any]) -> TokenInfo:
    text = token.get("token") or ""
    raw = token.get("bytes")
    return TokenInfo(
        text,
        bytes(raw) if raw is not None else text.encode(),
        token.get("logprob") or 0.0,
        [_info(other) for other in token.get("top_logprobs") or []],
    )
