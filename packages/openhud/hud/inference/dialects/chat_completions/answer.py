"""Responses of chat completions, read and written: choices, token ids, logprobs, usage, errors."""

from __future__ import annotations

from typing import Any

from hud.errors import InfrastructureFault
from hud.inference.dialects.chat_completions.content import reasoning_in, texts_of
from hud.inference.dialects.chat_completions.finish_reasons import read_reason
from hud.inference.dialects.codec import Refusal
from hud.inference.dialects.events import Finished, TokenInfo, Turn
from hud.inference.dialects.request import GenerationRequest
from hud.inference.dialects.tool_calls import (
    CUT_OFF,
    MALFORMED,
    are_whole,
    arguments_in,
    distinct_ids,
    final_reason,
)
from hud.inference.prices import TokenCounts
from hud.inference.retries import BrokenAnswer, answered_error
from hud.trace import (
    Completion,
    Continuation,
    Sample,
    ToolCall,
    Usage,
    call_message,
    parsed_arguments,
)

FILTERED = "The server's content filter stopped the turn."
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
OVERFLOW = "This model's maximum context length is exceeded"
"""Words of a context overflow, for clients that do not read the code."""
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


def read_answer(
    answer: dict[str, Any],
    model: str,
    continuation: Continuation | None,
    temperature: float | None = None,
) -> Completion:
    """Return the completion in a response. Raises `BrokenAnswer` for a response without one, `AnsweredError` for an error.

    A sample's temperature is the server's, else the requested `temperature`, else the dialect's default of 1.
    """
    choice, message = _choice(answer)
    texts = texts_of(message)
    reason = read_reason(choice.get("finish_reason"))
    calls = read_calls(message, reason)
    reason = final_reason(reason or "stop", calls=bool(calls))
    # The dialect has no such finish reason; OpenHUD's gateway adds a stop reason.
    if choice.get("stop_reason") == MALFORMED and reason not in CUT_OFF:
        reason = MALFORMED
    sample = _sample(choice, answer, 1.0 if temperature is None else temperature)
    usage = answer.get("usage") or {}
    counts = token_counts(usage)
    extended = True
    if continuation is not None and sample is not None:
        prefix = continuation.token_ids
        extended = sample.prompt_token_ids[: len(prefix)] == prefix
    return Completion(
        content=texts.get("content"),
        reasoning=reasoning_in(texts),
        tool_calls=calls,
        finish_reason=reason,
        refusal=texts.get("refusal") or (FILTERED if reason == "content_filter" else None),
        model=answer.get("model") or model,
        usage=counts.priced(model) if usage.get("cost") is None else counts.usage(usage["cost"]),
        sample=sample,
        extended=extended,
    )


def token_counts(usage: dict[str, Any]) -> TokenCounts:
    """Return the counts in `usage`."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return TokenCounts(usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0, cached)


def _choice(answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the choice of a response and its message."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if isinstance(choice, dict) and choice.get("error"):
        raise answered_error(choice["error"])
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        shown = " ".join(str(answer)[:200].split())
        raise BrokenAnswer(f"answered with something that has no choices: {shown}")
    return choice, choice["message"]


def read_calls(message: dict[str, Any], reason: str | None) -> list[ToolCall]:
    """Return a message's tool calls, each with an id of its own; truncated calls are omitted.

    Raises `BrokenAnswer` for a call without a name.
    """
    functions = call_entries(message)
    if reason in CUT_OFF:
        functions = [call for call in functions if are_whole(arguments_in(function_in(call)))]
    return distinct_ids([_tool_call(call) for call in functions])


def call_entries(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of a message or a delta; in the dialect's older form only where there are none in the newer one."""
    calls = message.get("tool_calls")
    older = message.get("function_call")
    return [*calls] if calls else [{"function": older}] if older else []


def function_in(call: dict[str, Any]) -> dict[str, Any]:
    """Return name and arguments of a call, which some servers write into the call itself."""
    function: dict[str, Any] = call.get("function") or call.get("custom") or call
    return function


def _tool_call(call: dict[str, Any]) -> ToolCall:
    function = function_in(call)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise BrokenAnswer(f"answered with a tool call without a name: {str(call)[:200]}")
    arguments = parsed_arguments(arguments_in(function))
    return ToolCall(id=str(call.get("id") or ""), name=name, arguments=arguments)


def _sample(choice: dict[str, Any], answer: dict[str, Any], temperature: float) -> Sample | None:
    ids = choice.get("token_ids")
    prompt_ids, chunks = choice.get("prompt_token_ids"), choice.get("prompt_chunks")
    if ids is None or (prompt_ids is None and chunks is None):
        return None
    logprobs = [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or []]
    if len(logprobs) != len(ids):
        raise InfrastructureFault(
            f"The server of {answer.get('model')!r} gave {len(ids)} token ids but {len(logprobs)} logprobs."
        )
    return Sample(
        prompt_token_ids=prompt_ids or [],
        prompt_chunks=chunks,
        output_token_ids=ids,
        output_logprobs=logprobs,
        checkpoint=choice.get("checkpoint"),
        swaps=choice.get("swaps") or [],
        pictures=choice.get("pictures") or [],
        temperature=_number(choice.get("temperature"), temperature),
    )


def _number(value: Any, otherwise: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else otherwise


def write_choice(place: int, turn: Turn, request: GenerationRequest) -> dict[str, Any]:
    """Return a choice of an unstreamed response."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": turn.text or None,
        "refusal": turn.finished.refusal,
    }
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            call_message(call.id, call.name, call.arguments) for call in turn.calls
        ]
    logprobs = None
    if request.top_logprobs is not None:
        logprobs = {"content": write_logprobs(turn.tokens), "refusal": None}
    return {
        "index": place,
        "message": message,
        "logprobs": logprobs,
        **write_ending(turn.finished),
    }


def write_ending(finished: Finished) -> dict[str, Any]:
    """Return finish reason and stop string, and token ids where they were requested."""
    ending: dict[str, Any] = {"finish_reason": finished.reason}
    if finished.malformed:
        ending["stop_reason"] = MALFORMED
    elif finished.stop_string is not None:
        ending["stop_reason"] = finished.stop_string
    sample = finished.sample
    if sample is not None:
        ending["prompt_token_ids"] = sample.prompt_token_ids
        ending["token_ids"] = sample.output_token_ids
        ending["checkpoint"] = sample.checkpoint
        if sample.swaps:
            ending["swaps"] = sample.swaps
        if sample.pictures:
            # Without the files, which the client sent.
            ending["pictures"] = [
                picture.model_dump(exclude={"data"}) for picture in sample.pictures
            ]
        ending["temperature"] = sample.temperature
    return ending


def write_usage(usage: Usage) -> dict[str, Any]:
    """Return token counts."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def write_logprobs(tokens: list[TokenInfo]) -> list[dict[str, Any]]:
    """Return sampled tokens with their logprobs."""
    return [
        {**_token(token), "top_logprobs": [_token(other) for other in token.top]}
        for token in tokens
    ]


def _token(token: TokenInfo) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw)}


def write_error(refusal: Refusal) -> dict[str, Any]:
    """Return the body of an error of OpenAI's dialects."""
    kind = _ERRORS.get(refusal.status) or (
        "server_error" if refusal.status >= 500 else "invalid_request_error"
    )
    code = error_code(refusal)
    param = "messages" if refusal.too_long else None
    message = refusal.sentence(OVERFLOW)
    return {
        "error": {"message": message, "type": kind, "param": param, "code": code},
        "detail": message,
    }


def error_code(refusal: Refusal) -> str | None:
    """Return the code of an error of OpenAI's dialects."""
    if refusal.too_long:
        return "context_length_exceeded"
    return _CODES.get(refusal.status)
