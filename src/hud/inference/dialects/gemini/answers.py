"""What Gemini answered, as a turn: text, thoughts, calls, citations, why it ended, and what it cost."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, Literal

from hud.inference.dialects.gemini.requests import DIALECT, Part
from hud.inference.dialects.gemini.tools import Declared
from hud.inference.prices import cost_usd
from hud.inference.retries import BrokenAnswer
from hud.trace import Citation, Completion, Usage

SafetyPolicy = Literal["acknowledge", "stop"]
_FINISH = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "TOO_MANY_TOOL_CALLS": "length",
    "MALFORMED_FUNCTION_CALL": "malformed_tool_call",
    "UNEXPECTED_TOOL_CALL": "malformed_tool_call",
    "MALFORMED_RESPONSE": "malformed_tool_call",
}
"""All other reasons are the provider's will that nothing be said."""


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the answer that the pieces of a stream make together.

    Pieces of one text become one part, but a part with a signature stays as it is.
    """
    whole: dict[str, Any] = {}
    candidate: dict[str, Any] = {}
    parts: list[Part] = []
    for chunk in chunks:
        whole.update({name: value for name, value in chunk.items() if name != "candidates"})
        for piece in (chunk.get("candidates") or [])[:1]:
            for part in (piece.get("content") or {}).get("parts") or []:
                _append(parts, part)
            candidate.update({name: value for name, value in piece.items() if name != "content"})
    if candidate or parts:
        whole["candidates"] = [{**candidate, "content": {"role": "model", "parts": parts}}]
    return whole


def read_answer(
    answer: dict[str, Any], model: str, declared: Declared, safety: SafetyPolicy = "acknowledge"
) -> Completion:
    """Return the turn that an answer holds; raises `BrokenAnswer` for one that is not over."""
    blocked = (answer.get("prompt_feedback") or {}).get("block_reason")
    candidate: dict[str, Any] = next(iter(answer.get("candidates") or []), {})
    reason = candidate.get("finish_reason") or blocked
    if reason is None:
        raise BrokenAnswer("answered without an end, or with nothing at all")
    parts: list[Part] = (candidate.get("content") or {}).get("parts") or []
    refusal = None
    if reason not in _FINISH:
        told = candidate.get("finish_message") or (answer.get("prompt_feedback") or {}).get(
            "block_reason_message"
        )
        refusal = f"{told} ({reason})" if told else f"The provider stopped the answer: {reason}."
    checks = _safety_checks(parts)
    stopped = bool(checks) and safety == "stop"
    if stopped:
        refusal = "; ".join(str(check.get("explanation") or "(no reason)") for check in checks)
    if refusal is not None:
        # What is not executed must not be repeated either: a call wants its response.
        parts = [part for part in parts if "function_call" not in part]
    functions = [part["function_call"] for part in parts if "function_call" in part]
    # Not all models name their calls.
    ids = [function.get("id") or f"call_{uuid.uuid4().hex[:16]}" for function in functions]
    calls = [
        call
        for call_id, function in zip(ids, functions, strict=True)
        for call in declared.calls(call_id, function["name"], function.get("args") or {})
    ]
    finish = _FINISH.get(reason, "refusal")
    if finish == "stop" and calls:
        finish = "tool_calls"
    completion = Completion(
        content="".join(_texts(parts, thought=False)) or None,
        reasoning="".join(_texts(parts, thought=True)) or None,
        tool_calls=calls,
        finish_reason="safety_check" if stopped else finish,
        refusal=refusal,
        model=answer.get("model_version") or model,
        usage=_usage(answer, model),
        citations=_citations(candidate, parts),
        verbatim={"dialect": DIALECT, "items": parts, "ids": ids},
        extra={"stop_reason": reason},
    )
    if checks:
        completion.extra["safety_checks"] = [
            {**check, "acknowledged": not stopped} for check in checks
        ]
    intents = {
        call_id: function["args"]["intent"]
        for call_id, function in zip(ids, functions, strict=True)
        if declared.is_action(function["name"]) and (function.get("args") or {}).get("intent")
    }
    if intents:
        completion.extra["intents"] = intents
    return completion


def _append(parts: list[Part], part: Part) -> None:
    if part.keys() <= {"text", "thought"} and not part.get("text"):
        return  # An end that says nothing.
    last = parts[-1] if parts else {}
    plain = part.keys() <= {"text", "thought"} and last.keys() <= {"text", "thought"}
    if plain and "text" in last and last.get("thought") == part.get("thought"):
        parts[-1] = {**last, "text": last["text"] + (part.get("text") or "")}
    else:
        parts.append(part)


def _texts(parts: list[Part], *, thought: bool) -> Iterable[str]:
    for part in parts:
        if bool(part.get("thought")) == thought and part.get("text"):
            yield part["text"]


def _safety_checks(parts: list[Part]) -> list[dict[str, Any]]:
    """Return what the provider wants a person to agree to."""
    found = []
    for part in parts:
        function = part.get("function_call") or {}
        decision = (function.get("args") or {}).get("safety_decision")
        if isinstance(decision, dict) and decision.get("decision") != "regular":
            found.append({"function": function["name"], **decision})
    return found


def _citations(candidate: dict[str, Any], parts: list[Part]) -> list[Citation]:
    grounding = candidate.get("grounding_metadata") or {}
    chunks = [_source(chunk) for chunk in grounding.get("grounding_chunks") or []]
    spoken = "".join(_texts(parts, thought=False)).encode()
    found = [
        Citation(
            type="grounding",
            text=(support.get("segment") or {}).get("text") or "",
            **chunks[index],
            **_span(spoken, support.get("segment") or {}),
        )
        for support in grounding.get("grounding_supports") or []
        for index in support.get("grounding_chunk_indices") or []
        if index < len(chunks)
    ]
    if not found:
        found = [Citation(type="grounding", text="", **chunk) for chunk in chunks]
    for quoted in (candidate.get("citation_metadata") or {}).get("citations") or []:
        text = spoken[quoted.get("start_index") or 0 : quoted.get("end_index")]
        found.append(
            Citation(
                type="citation",
                text=text.decode(errors="ignore"),
                source=quoted.get("uri") or "",
                title=quoted.get("title"),
                **_span(spoken, quoted),
            )
        )
    return found


def _source(chunk: dict[str, Any]) -> dict[str, Any]:
    for kind in ("web", "retrieved_context", "maps", "image"):
        if chunk.get(kind):
            known = chunk[kind]
            source = known.get("uri") or known.get("source_uri") or known.get("title") or ""
            return {"source": source, "title": known.get("title")}
    return {"source": "", "title": None}


def _span(spoken: bytes, place: dict[str, Any]) -> dict[str, Any]:
    """Return where in the text something is, in characters: the API counts bytes."""

    def characters(index: int) -> int:
        return len(spoken[:index].decode(errors="ignore"))

    end = place.get("end_index")
    return {
        "start_index": characters(place.get("start_index") or 0),
        "end_index": None if end is None else characters(end),
    }


def _usage(answer: dict[str, Any], model: str) -> Usage:
    usage = answer.get("usage_metadata") or {}
    prompt = (usage.get("prompt_token_count") or 0) + (
        usage.get("tool_use_prompt_token_count") or 0
    )
    drawn = (usage.get("candidates_token_count") or 0) + (usage.get("thoughts_token_count") or 0)
    cached = usage.get("cached_content_token_count") or 0
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=drawn,
        cached_tokens=cached,
        cost_usd=cost_usd(
            model, prompt_tokens=prompt, completion_tokens=drawn, cached_tokens=cached
        ),
    )
