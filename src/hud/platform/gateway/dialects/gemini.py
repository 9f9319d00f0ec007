"""Gemini's generateContent: how it reads, and how turns are told. Fields may be written in camel or in snake case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from hud.errors import UsageError
from hud.platform.gateway.answers import Call, Turn, usage_of
from hud.platform.gateway.dialects.dialect import Family
from hud.platform.gateway.dialects.openai_messages import (
    call_message,
    checked_choice,
    image_part,
    join_parts,
    read_stops,
    tool_spec,
)
from hud.platform.gateway.events import (
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
from hud.platform.gateway.exchange import EVENTS, JSON
from hud.platform.gateway.fields import Fields
from hud.platform.gateway.refusals import Refusal
from hud.platform.gateway.requests import GenerationRequest, OutputFormat, Sampling, ToolChoice
from hud.trace import ChatMessage, ToolSpec, Usage, new_id

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


class GeminiDialect:
    """`POST /v1beta/models/{model}:generateContent` and `:streamGenerateContent`."""

    family: Family = "gemini"

    def read(self, body: Fields) -> GenerationRequest:
        body.refuse(_UNSUPPORTED, " for this model")
        config = body.inner("generationConfig", "generation_config") or Fields({})
        config.refuse(_UNSUPPORTED_CONFIG, " for this model")
        tools = _read_tools(body)
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
            sampling=Sampling(
                max_tokens=config.integer("maxOutputTokens", "max_output_tokens", least=1),
                temperature=config.number("temperature", least=0, most=2),
                top_p=config.number("topP", "top_p", least=1e-6, most=1),
                top_k=config.integer("topK", "top_k", least=0),
                stop=tuple(
                    read_stops(config, "stopSequences", "stop_sequences"),
                ),
                seed=config.integer("seed", least=0),
            ),
            choices=config.integer(
                "candidateCount", "candidate_count", least=1, most=MOST_CANDIDATES
            )
            or 1,
            tool_choice=_read_choice(body, tools),
            format=_read_format(config),
            top_logprobs=(most or 0) if logprobs else None,
            checkpoint=body.text("checkpoint"),
            stream=bool(body.flag("stream")),
            think=bool(thinking.flag("includeThoughts", "include_thoughts")),
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

    def teller(self, body: Fields, request: GenerationRequest, model: str) -> GeminiTeller:
        return GeminiTeller(
            model, think=bool(request.think), events=bool(body.flag("server_sent_events"))
        )

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return gemini_error(refusal)


class GeminiTeller:
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

    def tell(self, event: Event) -> bytes:
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


def read_contents(body: Fields) -> list[ChatMessage]:
    """Return the system instruction and the contents as chat messages."""
    messages: list[ChatMessage] = []
    system = body.get("systemInstruction", "system_instruction")
    if isinstance(system, str):
        messages.append({"role": "system", "content": system})
    elif system is not None:
        parts = _parts(Fields(system, "systemInstruction"))
        text = "\n".join(part.text("text") or "" for part in parts)
        messages.append({"role": "system", "content": text})
    # Calls have no ids here, or may have none: an answer belongs to the earliest open call of its name.
    open_calls: list[tuple[str, str]] = []
    contents = body.get("contents")
    if isinstance(contents, str):
        return [*messages, {"role": "user", "content": contents}]
    for content in (
        body.objects("contents")
        if isinstance(contents, list)
        else [Fields(contents, "contents")]
        if contents
        else []
    ):
        role = content.text("role") or "user"
        if role == "model":
            messages.append(_read_model(content, open_calls))
        elif role in ("user", "function", "tool"):
            messages.extend(_read_user(content, open_calls))
        else:
            raise content.wrong("role", "'user' or 'model'")
    return messages


def _parts(content: Fields) -> list[Fields]:
    parts = content.get("parts")
    return (
        [content.inner("parts") or Fields({})]
        if isinstance(parts, dict)
        else content.objects("parts")
    )


def _read_model(content: Fields, open_calls: list[tuple[str, str]]) -> ChatMessage:
    read: ChatMessage = {"role": "assistant", "content": None}
    calls: list[dict[str, Any]] = []
    for part in _parts(content):
        call = part.inner("functionCall", "function_call")
        text = part.text("text")
        if call is not None:
            name = call.needed_text("name")
            identifier = call.text("id") or f"call_{len(open_calls) + len(calls)}_{name}"
            arguments = call.inner("args")
            calls.append(
                call_message(
                    identifier,
                    name,
                    orjson.dumps({} if arguments is None else arguments.values).decode(),
                )
            )
            open_calls.append((name, identifier))
        elif text is not None and part.flag("thought"):
            read["reasoning_content"] = read.get("reasoning_content", "") + text
        elif text is not None:
            read["content"] = (read["content"] or "") + text
        elif part.get("thoughtSignature", "thought_signature") is None:
            raise UsageError(f"{part.where}: only text and function calls are supported here.")
    if calls:
        read["tool_calls"] = calls
    return read


def _read_user(content: Fields, open_calls: list[tuple[str, str]]) -> list[ChatMessage]:
    results: list[ChatMessage] = []
    parts: list[dict[str, Any]] = []
    for part in _parts(content):
        response = part.inner("functionResponse", "function_response")
        if response is None:
            parts.append(_read_part(part))
            continue
        name = response.needed_text("name")
        identifier = response.text("id") or next(
            (call for known, call in open_calls if known == name), name
        )
        open_calls[:] = [call for call in open_calls if call[1] != identifier]
        value = response.inner("response")
        results.append(
            {
                "role": "tool",
                "tool_call_id": identifier,
                "content": _result_text({} if value is None else value.values),
            }
        )
    return [*results, {"role": "user", "content": join_parts(parts)}] if parts else results


def _result_text(value: dict[str, Any]) -> str:
    """Return a function's answer as a model reads it; the client wraps a plain one into an object."""
    if len(value) == 1:
        (key, only) = next(iter(value.items()))
        if key in ("result", "output") and isinstance(only, str):
            return only
    return orjson.dumps(value).decode()


def _read_part(part: Fields) -> dict[str, Any]:
    text = part.text("text")
    if text is not None:
        return {"type": "text", "text": text}
    data = part.inner("inlineData", "inline_data")
    if data is not None:
        kind = data.text("mimeType", "mime_type") or ""
        if kind.startswith("image/"):
            return image_part(f"data:{kind};base64,{data.needed_text('data')}")
    raise UsageError(f"{part.where}: only text and inline images are supported here.")


def _read_tools(body: Fields) -> list[ToolSpec]:
    tools: list[ToolSpec] = []
    for tool in body.objects("tools"):
        unknown = tool.values.keys() - {"functionDeclarations", "function_declarations"}
        given = [name for name in unknown if tool.values[name] is not None]
        if given:
            raise UsageError(
                f"{tool.where}: {min(given)} is not supported here, only functionDeclarations."
            )
        for function in tool.objects("functionDeclarations", "function_declarations"):
            schema = function.inner("parametersJsonSchema", "parameters_json_schema")
            if schema is None:
                schema = function.inner("parameters")
            tools.append(
                tool_spec(
                    function.needed_text("name"),
                    function.text("description") or "",
                    None if schema is None else json_schema(schema.values),
                )
            )
    return tools


def json_schema(schema: Any) -> Any:
    """Return a schema of Gemini's (OpenAPI, types in capitals) as a JSON schema."""
    if isinstance(schema, list):
        return [json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    read: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "type" and isinstance(value, str):
            read[name] = value.lower()
        elif name == "properties" and isinstance(value, dict):
            read[name] = {key: json_schema(item) for key, item in value.items()}
        elif name in ("enum", "required", "default", "example"):
            read[name] = value
        else:
            read[name] = json_schema(value)
    return read


def _read_choice(body: Fields, tools: list[ToolSpec]) -> ToolChoice:
    config = body.inner("toolConfig", "tool_config")
    calling = None
    if config is not None:
        calling = config.inner("functionCallingConfig", "function_calling_config")
    if calling is None:
        return ToolChoice()
    mode = (calling.text("mode") or "AUTO").upper()
    names = calling.texts("allowedFunctionNames", "allowed_function_names")
    match mode:
        case "AUTO" | "MODE_UNSPECIFIED":
            return ToolChoice()
        case "NONE":
            return ToolChoice("none")
        case "ANY":
            return checked_choice(ToolChoice("required", names), tools)
    raise calling.wrong("mode", "'AUTO', 'ANY' or 'NONE'")


def _read_format(config: Fields) -> OutputFormat | None:
    kind = config.text("responseMimeType", "response_mime_type")
    schema = config.inner("responseJsonSchema", "response_json_schema")
    if schema is None:
        schema = config.inner("responseSchema", "response_schema")
    if schema is not None:
        return OutputFormat(json_schema(schema.values))
    if kind in (None, "text/plain"):
        return None
    if kind == "application/json":
        return OutputFormat()
    raise config.wrong("responseMimeType", "'text/plain' or 'application/json'")


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
