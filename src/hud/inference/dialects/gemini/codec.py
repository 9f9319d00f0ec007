"""Gemini's generateContent: how it reads, and how turns are told. Fields may be written in camel or in snake case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from hud.errors import UsageError
from hud.inference.dialects.chat_completions.conversation import (
    read_stops,
)
from hud.inference.dialects.codec import EVENTS, JSON, Family, Refusal
from hud.inference.dialects.efforts import effort_of_budget, read_effort
from hud.inference.dialects.events import (
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
from hud.inference.dialects.gemini.contents import (
    read_choice,
    read_contents,
    read_format,
    read_tools,
)
from hud.inference.dialects.request import GenerationRequest
from hud.inference.dialects.turns import Call, Turn, usage_of
from hud.trace import SamplingParams, Usage, new_id

_UNSUPPORTED = ("cachedContent", "cached_content")
_UNSUPPORTED_CONFIG = (
    "presencePenalty",
    "presence_penalty",
    "frequencyPenalty",
    "frequency_penalty",
    "speechConfig",
    "speech_config",
    "imageConfig",
    "image_config",
)
_KINDS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_STOPS = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP", "content_filter": "SAFETY"}
MOST_CANDIDATES = 8


class GeminiCodec:
    """`POST /v1beta/models/{model}:generateContent` and `:streamGenerateContent`."""

    family: Family = "gemini"

    def read(self, body: Fields) -> GenerationRequest:
        body.refuse(_UNSUPPORTED, " for this model")
        config = body.inner("generationConfig", "generation_config") or Fields({})
        config.refuse(_UNSUPPORTED_CONFIG, " for this model")
        tools = read_tools(body)
        messages = read_contents(body)
        if not any(message["role"] != "system" for message in messages):
            raise UsageError("contents must hold at least one content.")
        thinking = config.inner("thinkingConfig", "thinking_config") or Fields({})
        logprobs = config.flag("responseLogprobs", "response_logprobs")
        most = config.integer("logprobs", least=0, most=20)
        return GenerationRequest(
            model=body.needed_text("model"),
            messages=messages,
            tools=tools,
            sampling=SamplingParams(
                max_tokens=config.integer("maxOutputTokens", "max_output_tokens", least=1),
                temperature=config.number("temperature", least=0, most=2),
                top_p=config.number("topP", "top_p", least=1e-6, most=1),
                top_k=config.integer("topK", "top_k", least=0),
                stop=tuple(
                    read_stops(config, "stopSequences", "stop_sequences"),
                ),
                seed=config.integer("seed", least=0),
                reasoning_effort=read_effort(thinking, "thinkingLevel", "thinking_level"),
            ),
            choices=config.integer(
                "candidateCount", "candidate_count", least=1, most=MOST_CANDIDATES
            )
            or 1,
            tool_choice=read_choice(body, tools),
            format=read_format(config),
            top_logprobs=(most or 0) if logprobs else None,
            checkpoint=body.text("checkpoint"),
            stream=bool(body.flag("stream")),
            think=bool(thinking.flag("includeThoughts", "include_thoughts")),
            budgeted_effort=effort_of_budget(
                thinking.integer("thinkingBudget", "thinking_budget", least=-1)
            ),
        )

    def whole(
        self, body: Fields, request: GenerationRequest, model: str, turns: Sequence[Turn]
    ) -> dict[str, Any]:
        candidates = []
        for place, turn in enumerate(turns):
            parts: list[dict[str, Any]] = []
            if turn.reasoning and request.think:
                parts.append({"text": turn.reasoning, "thought": True})
            if turn.text:
                parts.append({"text": turn.text})
            parts.extend(_call_part(call) for call in turn.calls)
            candidate = _candidate(place, parts, turn.finished)
            if request.top_logprobs is not None:
                candidate.update(_logprobs(turn.tokens))
            candidates.append(candidate)
        return {
            "candidates": candidates,
            "usageMetadata": _usage(usage_of(turn.finished for turn in turns)),
            "modelVersion": model,
            "responseId": new_id(),
        }

    def writer(self, body: Fields, request: GenerationRequest, model: str) -> ContentWriter:
        return ContentWriter(
            model, think=bool(request.think), events=bool(body.flag("server_sent_events"))
        )

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return gemini_error(refusal)


class ContentWriter:
    """Partial answers, as server-sent events or as the items of one JSON array."""

    def __init__(self, model: str, *, think: bool, events: bool) -> None:
        self.content_type = EVENTS if events else JSON
        self._events = events
        self._think = think
        self._rest = {"modelVersion": model, "responseId": new_id()}
        self._calls: dict[tuple[int, int], Call] = {}
        self._tokens: dict[int, list[TokenInfo]] = {}
        self._ends: list[Finished] = []
        self._told = 0

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
                # A call comes whole in this dialect.
                return self._candidate(choice, [_call_part(self._calls.pop((choice, position)))])
            case TokensDrawn(choice, tokens):
                self._tokens.setdefault(choice, []).extend(tokens)
            case Finished(choice):
                self._ends.append(event)
                return self._candidate(choice, [], event)
        return b""

    def end(self) -> bytes:
        if self._events:
            return b""
        return b"]" if self._told else b"[]"

    def fail(self, refusal: Refusal) -> bytes:
        return self._item(gemini_error(refusal)) + self.end()

    def _candidate(
        self, choice: int, parts: list[dict[str, Any]], finished: Finished | None = None
    ) -> bytes:
        candidate = _candidate(choice, parts, finished)
        tokens = self._tokens.pop(choice, None)
        if tokens:
            candidate.update(_logprobs(tokens))
        item: dict[str, Any] = {"candidates": [candidate], **self._rest}
        if finished is not None:
            item["usageMetadata"] = _usage(usage_of(self._ends))
        return self._item(item)

    def _item(self, value: dict[str, Any]) -> bytes:
        self._told += 1
        if self._events:
            return b"data: " + orjson.dumps(value) + b"\r\n\r\n"
        return (b"[" if self._told == 1 else b",\r\n") + orjson.dumps(value)


def gemini_error(refusal: Refusal) -> dict[str, Any]:
    """Return an error as Gemini's clients read it."""
    status = _KINDS.get(refusal.status) or (
        "INTERNAL" if refusal.status >= 500 else "INVALID_ARGUMENT"
    )
    return {
        "error": {"code": refusal.status, "message": refusal.message, "status": status},
        "detail": refusal.message,
    }


def _call_part(call: Call) -> dict[str, Any]:
    arguments = orjson.loads(call.arguments or "{}")
    return {"functionCall": {"id": call.id, "name": call.name, "args": arguments}}


def _candidate(
    place: int, parts: list[dict[str, Any]], finished: Finished | None
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": place}
    if finished is not None:
        candidate["finishReason"] = (
            "MALFORMED_FUNCTION_CALL" if finished.malformed else _STOPS[finished.reason]
        )
    return candidate


def _logprobs(tokens: Iterable[TokenInfo]) -> dict[str, Any]:
    def told(token: TokenInfo) -> dict[str, Any]:
        return {"token": token.text, "logProbability": token.logprob}

    drawn = list(tokens)
    return {
        "avgLogprobs": sum(token.logprob for token in drawn) / max(1, len(drawn)),
        "logprobsResult": {
            "chosenCandidates": [told(token) for token in drawn],
            "topCandidates": [
                {"candidates": [told(other) for other in token.top]} for token in drawn
            ],
        },
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
    }
