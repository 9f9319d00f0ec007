"""Responses of generateContent, read and written: parts, finish reasons, refusals, citations, usage, errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hud import exact_json
from hud.inference.dialects.codec import Refusal, SafetyPolicy
from hud.inference.dialects.conversation_parts import Part
from hud.inference.dialects.events import Call, Finished, TokenInfo, Turn
from hud.inference.dialects.tool_calls import arguments_in, distinct_ids, final_reason
from hud.inference.prices import TokenCounts
from hud.inference.retries import BrokenAnswer
from hud.trace import Citation, Completion, ToolCall, Usage, parsed_arguments
from hud_integrations.gemini.conversation import DIALECT
from hud_integrations.gemini.spelling import camel_case
from hud_integrations.gemini.tools import Declared

FINISH_REASONS = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "TOO_MANY_TOOL_CALLS": "length",
    "MALFORMED_FUNCTION_CALL": "malformed_tool_call",
    "UNEXPECTED_TOOL_CALL": "malformed_tool_call",
    "MALFORMED_RESPONSE": "malformed_tool_call",
}
"""`Completion.finish_reason` by `finishReason`; all others are refusals."""
NO_END = "answered without an end, or with nothing at all"
_STOP_REASONS = {
    "stop": "STOP",
    "length": "MAX_TOKENS",
    "tool_calls": "STOP",
    "content_filter": "SAFETY",
}
_ERRORS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def read_answer(
    answer: dict[str, Any], model: str, declared: Declared, safety: SafetyPolicy = "acknowledge"
) -> Completion:
    """Return the turn of a response. Raises `BrokenAnswer` without a finish reason."""
    answer = camel_case(answer)
    blocked = (answer.get("promptFeedback") or {}).get("blockReason")
    candidate: dict[str, Any] = next(iter(answer.get("candidates") or []), {})
    reason = candidate.get("finishReason") or blocked
    if reason in (None, "FINISH_REASON_UNSPECIFIED"):
        raise BrokenAnswer(NO_END)
    parts: list[Part] = (candidate.get("content") or {}).get("parts") or []
    refusal = None
    if reason not in FINISH_REASONS:
        message = candidate.get("finishMessage") or (answer.get("promptFeedback") or {}).get(
            "blockReasonMessage"
        )
        refusal = (
            f"{message} ({reason})" if message else f"The provider stopped the answer: {reason}."
        )
    checks = _safety_checks(parts)
    stopped = bool(checks) and safety == "stop"
    if stopped:
        refusal = "; ".join(str(check.get("explanation") or "(no reason)") for check in checks)
    if refusal is not None:
        # A call that is not executed must not be repeated either: the API requires its response.
        parts = [part for part in parts if "functionCall" not in part]
    functions = [_function(part) for part in parts if "functionCall" in part]
    ids = [call.id for call in distinct_ids(functions)]
    calls = [
        call for made in functions for call in declared.calls(made.id, made.name, made.arguments)
    ]
    finish = final_reason(FINISH_REASONS.get(reason, "refusal"), calls=bool(calls))
    completion = Completion(
        content="".join(_texts(parts, thought=False)) or None,
        reasoning="".join(_texts(parts, thought=True)) or None,
        tool_calls=calls,
        finish_reason="safety_check" if stopped else finish,
        refusal=refusal,
        model=answer.get("modelVersion") or model,
        usage=token_counts(answer.get("usageMetadata") or {}).priced(model),
        citations=_citations(candidate, parts),
        verbatim={"dialect": DIALECT, "items": parts, "ids": ids},
        extra={"stop_reason": reason},
    )
    if checks:
        completion.extra["safety_checks"] = [
            {**check, "acknowledged": not stopped} for check in checks
        ]
    intents = {
        call.id: call.arguments["intent"]
        for call in functions
        if declared.is_action(call.name)
        and isinstance(call.arguments, dict)
        and call.arguments.get("intent")
    }
    if intents:
        completion.extra["intents"] = intents
    return completion


def _function(part: Part) -> ToolCall:
    """Return a function call, whose id not all models send. Raises `BrokenAnswer` for one without a name."""
    function = part["functionCall"]
    if not function.get("name"):
        raise BrokenAnswer(f"answered with a function call without a name: {str(function)[:200]}")
    arguments = parsed_arguments(whole_arguments(function))
    return ToolCall(id=function.get("id") or "", name=function["name"], arguments=arguments)


def whole_arguments(function: dict[str, Any]) -> Any:
    """Return the arguments of a function call. Raises `BrokenAnswer` for pieces of them, which are sent on request only."""
    if function.get("partialArgs") or function.get("willContinue"):
        raise BrokenAnswer(f"answered with part of a function call: {str(function)[:200]}")
    return arguments_in(function, "args")


def _texts(parts: list[Part], *, thought: bool) -> Iterable[str]:
    for part in parts:
        if bool(part.get("thought")) == thought and part.get("text"):
            yield part["text"]


def _safety_checks(parts: list[Part]) -> list[dict[str, Any]]:
    """Return the actions that require a person's confirmation by the provider's policy."""
    checks = []
    for part in parts:
        function = part.get("functionCall") or {}
        arguments = parsed_arguments(function.get("args"))
        decision = arguments.get("safety_decision") if isinstance(arguments, dict) else None
        if isinstance(decision, dict) and decision.get("decision") != "regular":
            checks.append({"function": function["name"], **decision})
    return checks


def _citations(candidate: dict[str, Any], parts: list[Part]) -> list[Citation]:
    grounding = candidate.get("groundingMetadata") or {}
    chunks = [_source(chunk) for chunk in grounding.get("groundingChunks") or []]
    spoken = "".join(_texts(parts, thought=False)).encode()
    citations = [
        Citation(
            type="grounding",
            text=(support.get("segment") or {}).get("text") or "",
            **chunks[index],
            **_span(spoken, support.get("segment") or {}),
        )
        for support in grounding.get("groundingSupports") or []
        for index in support.get("groundingChunkIndices") or []
        if index < len(chunks)
    ]
    if not citations:
        citations = [Citation(type="grounding", text="", **chunk) for chunk in chunks]
    for quoted in _quoted(candidate):
        text = spoken[quoted.get("startIndex") or 0 : quoted.get("endIndex")]
        citations.append(
            Citation(
                type="citation",
                text=text.decode(errors="ignore"),
                source=quoted.get("uri") or "",
                title=quoted.get("title"),
                **_span(spoken, quoted),
            )
        )
    return citations


def _quoted(candidate: dict[str, Any]) -> list[dict[str, Any]]:
    metadata = candidate.get("citationMetadata") or {}
    sources: list[dict[str, Any]] = (
        metadata.get("citationSources") or metadata.get("citations") or []
    )
    return sources


def _source(chunk: dict[str, Any]) -> dict[str, Any]:
    for kind in ("web", "retrievedContext", "maps", "image"):
        if chunk.get(kind):
            details = chunk[kind]
            source = details.get("uri") or details.get("sourceUri") or details.get("title") or ""
            return {"source": source, "title": details.get("title")}
    return {"source": "", "title": None}


def _span(spoken: bytes, place: dict[str, Any]) -> dict[str, Any]:
    """Return a span's position in the text, in characters; the API counts bytes."""

    def characters(index: int) -> int:
        return len(spoken[:index].decode(errors="ignore"))

    end = place.get("endIndex")
    return {
        "start_index": characters(place.get("startIndex") or 0),
        "end_index": None if end is None else characters(end),
    }


def token_counts(usage: dict[str, Any]) -> TokenCounts:
    """Return the counts in `usageMetadata`; thoughts count as output."""
    usage = camel_case(usage)
    prompt = (usage.get("promptTokenCount") or 0) + (usage.get("toolUsePromptTokenCount") or 0)
    output = (usage.get("candidatesTokenCount") or 0) + (usage.get("thoughtsTokenCount") or 0)
    return TokenCounts(prompt, output, usage.get("cachedContentTokenCount") or 0)


def write_turn(place: int, turn: Turn, *, think: bool | None, logprobs: bool) -> dict[str, Any]:
    """Return one candidate of a whole answer; `think` false leaves reasoning out."""
    parts: list[Part] = []
    if turn.reasoning and think:
        parts.append({"text": turn.reasoning, "thought": True})
    if turn.text:
        parts.append({"text": turn.text})
    # The dialect has no text for the arguments of a call that was cut off.
    parts.extend(call_part(call) for call in turn.calls if call.complete)
    sign_parts(parts, turn.seal)
    candidate = write_candidate(place, parts, turn.finished)
    return {**candidate, **write_logprobs(turn.tokens)} if logprobs else candidate


def sign_parts(parts: list[Part], seal: str) -> None:
    """Add the seal of a turn's thought to its first call, or to its last part, as Gemini does."""
    if seal:
        signed = next((part for part in parts if "functionCall" in part), parts[-1:] and parts[-1])
        if signed and not signed.get("thought"):
            signed["thoughtSignature"] = seal
        else:
            parts.append({"text": "", "thoughtSignature": seal})


def call_part(call: Call) -> dict[str, Any]:
    """Return a function call as a part."""
    arguments = exact_json.loads(call.arguments)
    return {"functionCall": {"id": call.id, "name": call.name, "args": arguments}}


def write_candidate(
    place: int, parts: list[dict[str, Any]], finished: Finished | None
) -> dict[str, Any]:
    """Return a candidate; `finished` None: it is incomplete."""
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": place}
    if finished is not None:
        candidate["finishReason"] = (
            "MALFORMED_FUNCTION_CALL" if finished.malformed else _STOP_REASONS[finished.reason]
        )
    return candidate


def write_logprobs(tokens: Iterable[TokenInfo]) -> dict[str, Any]:
    """Return the fields of a candidate that hold logprobs."""

    def written(token: TokenInfo) -> dict[str, Any]:
        return {"token": token.text, "logProbability": token.logprob}

    drawn = list(tokens)
    return {
        "avgLogprobs": sum(token.logprob for token in drawn) / max(1, len(drawn)),
        "logprobsResult": {
            "chosenCandidates": [written(token) for token in drawn],
            "topCandidates": [
                {"candidates": [written(other) for other in token.top]} for token in drawn
            ],
        },
    }


def write_usage(usage: Usage) -> dict[str, Any]:
    """Return token counts."""
    return {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
    }


def write_error(refusal: Refusal) -> dict[str, Any]:
    """Return the body of an error."""
    status = _ERRORS.get(refusal.status) or (
        "INTERNAL" if refusal.status >= 500 else "INVALID_ARGUMENT"
    )
    message = refusal.sentence("The input token count exceeds the maximum number of tokens allowed")
    return {
        "error": {"code": refusal.status, "message": message, "status": status},
        "detail": message,
    }
