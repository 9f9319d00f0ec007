"""Claude's responses, read and written: content, stop reasons, refusals, citations, usage, errors.

A turn may consist of several responses: the API pauses a turn during long calls of server tools.
"""

from __future__ import annotations

from typing import Any

from hud import exact_json
from hud.inference.dialects.chat_completions.finish_reasons import read_reason
from hud.inference.dialects.codec import Refusal
from hud.inference.dialects.events import Finished, Turn
from hud.inference.dialects.tool_calls import (
    arguments_in,
    arguments_object,
    final_reason,
    new_call_id,
    plain_reason,
)
from hud.inference.prices import TokenCounts
from hud.inference.retries import BrokenAnswer
from hud.trace import Citation, Completion, Usage
from hud_integrations.anthropic.conversation import DIALECT, Block
from hud_integrations.anthropic.tools import Declared

PAUSED = "pause_turn"
FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "context_full",
    "refusal": "refusal",
    # The turn is still paused after the last request.
    PAUSED: "length",
}
"""`Completion.finish_reason` by `stop_reason`."""
_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
    "context_full": "model_context_window_exceeded",
}
_CUT_OFF = ("max_tokens", "model_context_window_exceeded", "refusal")
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def check_message(message: dict[str, Any]) -> None:
    """Raise `BrokenAnswer` for a response that is no complete message, or that failed."""
    if not isinstance(message.get("content"), list) or not read_stop(message.get("stop_reason")):
        raise BrokenAnswer(f"answered with something that is no message: {str(message)[:200]}")


def read_stop(word: Any) -> str | None:
    """Return a stop reason in Anthropic's words, also for a server with others; None before the turn's end.

    Raises `BrokenAnswer` for a failure.
    """
    plain = plain_reason(word)
    if plain in FINISH_REASONS:
        return plain
    reason = read_reason(word)
    return None if reason is None else _STOP_REASONS.get(reason, reason)


def read_turn(answers: list[dict[str, Any]], model: str, declared: Declared) -> Completion:
    """Return the turn of one response, or of several with pauses between them."""
    last = answers[-1]
    reason = read_stop(last["stop_reason"])
    assert reason is not None
    blocks = _with_ids(
        [
            block
            for answer in answers
            for block in answer["content"]
            if block["type"] != "text" or block["text"]  # The API rejects empty text in a request.
        ]
    )
    if reason == "refusal":
        # A call that was cut off by a refusal is not to be executed.
        blocks = [block for block in blocks if block["type"] != "tool_use"]
    elif reason in _CUT_OFF and blocks and blocks[-1]["type"] == "tool_use":
        # Nor is a truncated one, even if its arguments can be parsed.
        blocks.pop()
    uses = [block for block in blocks if block["type"] == "tool_use"]
    calls = [call for block in uses for call in declared.calls(block)]
    completion = Completion(
        content=_text(blocks),
        reasoning=_thoughts(blocks),
        tool_calls=calls,
        finish_reason=final_reason(FINISH_REASONS.get(reason, reason), calls=bool(calls)),
        refusal=_refusal(last) if reason == "refusal" else None,
        model=last.get("model") or model,
        usage=Usage.total(
            [token_counts(answer.get("usage") or {}).priced(model) for answer in answers]
        ),
        citations=_citations(blocks),
        verbatim={
            "dialect": DIALECT,
            "items": [_repeatable(block) for block in blocks if _signed(block)],
        },
    )
    completion.extra["stop_reason"] = reason
    for answer in answers:
        container = answer.get("container")
        if container and completion.verbatim is not None:
            completion.verbatim["container"] = container["id"]
    return completion


def token_counts(usage: dict[str, Any]) -> TokenCounts:
    """Return the counts in `usage`, whose `input_tokens` exclude those of the cache."""
    read = usage.get("cache_read_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0
    prompt = (usage.get("input_tokens") or 0) + read + written
    return TokenCounts(prompt, usage.get("output_tokens") or 0, read, written)


def _with_ids(blocks: list[Block]) -> list[Block]:
    """Return the blocks with new ids for calls without one, or with another's. Raises `BrokenAnswer` for one without a name."""
    used: set[str] = set()
    checked: list[Block] = []
    for block in blocks:
        if block["type"] == "tool_use":
            if not block.get("name"):
                raise BrokenAnswer(f"answered with a tool call without a name: {str(block)[:200]}")
            if not block.get("id") or block["id"] in used:
                block = {**block, "id": new_call_id()}
            used.add(block["id"])
            if block.get("input") is None:
                block = {**block, "input": arguments_in(block)}
        checked.append(block)
    return checked


def _repeatable(block: Block) -> Block:
    """Return a block for a later request: the API requires an object as the input of a call."""
    if block["type"] != "tool_use":
        return block
    return {**block, "input": arguments_object(block.get("input"))}


def _signed(block: Block) -> bool:
    """Return True if the API accepts the block in a later request: a truncated thought has no signature."""
    return block["type"] != "thinking" or bool(block.get("signature"))


def _text(blocks: list[Block]) -> str | None:
    """Return the text: adjacent blocks (citations split text) are joined as they are, others by newlines."""
    text, adjacent = "", True
    for block in blocks:
        if block["type"] == "text":
            text += block["text"] if adjacent or not text else "\n" + block["text"]
        adjacent = block["type"] == "text"
    return text or None


def _thoughts(blocks: list[Block]) -> str | None:
    thoughts = (block["thinking"] for block in blocks if block["type"] == "thinking")
    return "\n\n".join(thought for thought in thoughts if thought) or None


def _refusal(answer: dict[str, Any]) -> str:
    details = answer.get("stop_details") or {}
    category = details.get("category")
    reason = details.get("explanation") or "The provider's classifiers stopped the answer."
    return f"{reason} ({category})" if category else str(reason)


def _citations(blocks: list[Block]) -> list[Citation]:
    """Return the citations, each with the span of the answer's text that it supports."""
    citations = []
    for number, block in enumerate(blocks):
        notes = block.get("citations") or [] if block["type"] == "text" else []
        end = len(_text(blocks[: number + 1]) or "")
        citations += [
            Citation(
                type=note["type"],
                text=note.get("cited_text") or "",
                source=str(
                    note.get("url") or note.get("source") or note.get("document_title") or ""
                ),
                title=note.get("title") or note.get("document_title"),
                start_index=end - len(block["text"]),
                end_index=end,
            )
            for note in notes
        ]
    return citations


def write_message(model: str, response_id: str, turn: Turn, *, think: bool) -> dict[str, Any]:
    """Return a whole message; `think` False leaves reasoning out."""
    content: list[dict[str, Any]] = []
    if turn.reasoning and think:
        content.append({"type": "thinking", "thinking": turn.reasoning, "signature": turn.seal})
    if turn.text:
        content.append({"type": "text", "text": turn.text, "citations": None})
    content.extend(
        {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": exact_json.loads(call.arguments),
        }
        for call in turn.calls
        # The dialect has no text for the arguments of a call that was cut off.
        if call.complete
    )
    usage = write_usage(turn.finished.usage)
    return {
        **message_head(model, response_id),
        "content": content,
        **write_ending(turn.finished),
        "usage": usage,
    }


def message_head(model: str, response_id: str) -> dict[str, Any]:
    """Return the fields that a message begins with."""
    return {"id": f"msg_{response_id}", "type": "message", "role": "assistant", "model": model}


def write_ending(finished: Finished) -> dict[str, Any]:
    """Return stop reason and stop sequence."""
    if finished.stop_string is not None and finished.reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": finished.stop_string}
    return {"stop_reason": _STOP_REASONS[finished.reason], "stop_sequence": None}


def write_usage(usage: Usage) -> dict[str, Any]:
    """Return token counts; `input_tokens` excludes those that came from the cache."""
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens),
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


def write_error(refusal: Refusal) -> dict[str, Any]:
    """Return the body of an error."""
    kind = _ERRORS.get(refusal.status) or (
        "api_error" if refusal.status >= 500 else "invalid_request_error"
    )
    message = refusal.sentence("prompt is too long")
    return {"type": "error", "error": {"type": kind, "message": message}, "detail": message}
