"""What Claude answered, as a turn: text, thoughts, calls, citations, why it ended, and what it cost.

A turn may be several answers: where the provider's own tools take long, it pauses and is asked to go on.
"""

from __future__ import annotations

from typing import Any

from hud.inference.dialects.anthropic.requests import DIALECT, Block
from hud.inference.dialects.anthropic.tools import Declared
from hud.inference.prices import cost_usd
from hud.inference.retries import BrokenAnswer
from hud.trace import Citation, Completion, Usage

PAUSED = "pause_turn"
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "context_full",
    "refusal": "refusal",
    # It would still go on: we gave up asking.
    PAUSED: "length",
}
_CUT_OFF = ("max_tokens", "model_context_window_exceeded", "refusal")


def check(message: dict[str, Any]) -> dict[str, Any]:
    """Return an answer that is whole; raises `BrokenAnswer` for another."""
    if not isinstance(message.get("content"), list) or not message.get("stop_reason"):
        raise BrokenAnswer(f"answered with something that is no message: {str(message)[:200]}")
    return message


def read_turn(answers: list[dict[str, Any]], model: str, declared: Declared) -> Completion:
    """Return the turn that one answer, or several with pauses between them, makes."""
    last = answers[-1]
    reason = last["stop_reason"]
    blocks = [
        block
        for answer in answers
        for block in answer["content"]
        if block["type"] != "text" or block["text"]  # Empty text is not taken back.
    ]
    if reason == "refusal":
        # A call that was cut off by a refusal is not to be executed.
        blocks = [block for block in blocks if block["type"] != "tool_use"]
    elif reason in _CUT_OFF and blocks and blocks[-1]["type"] == "tool_use":
        # Nor is one that was cut off in the middle, even where its arguments can be read.
        blocks.pop()
    uses = [block for block in blocks if block["type"] == "tool_use"]
    calls = [call for block in uses for call in declared.calls(block)]
    content = _text(blocks)
    completion = Completion(
        content=content,
        reasoning=_thoughts(blocks),
        tool_calls=calls,
        finish_reason=_FINISH.get(reason, reason),
        refusal=_refusal(last) if reason == "refusal" else None,
        model=last.get("model") or model,
        usage=_usage(answers, model),
        citations=_citations(blocks),
        verbatim={"dialect": DIALECT, "items": [block for block in blocks if _signed(block)]},
    )
    completion.extra["stop_reason"] = reason
    for answer in answers:
        container = answer.get("container")
        if container and completion.verbatim is not None:
            completion.verbatim["container"] = container["id"]
    return completion


def _signed(block: Block) -> bool:
    """Say whether a block may be sent back: a thought that was cut off has no signature."""
    return block["type"] != "thinking" or bool(block.get("signature"))


def _text(blocks: list[Block]) -> str | None:
    """Return the text; pieces that citations part belong together, what other blocks part does not."""
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
    told = details.get("explanation") or "The provider's classifiers stopped the answer."
    return f"{told} ({category})" if category else str(told)


def _citations(blocks: list[Block]) -> list[Citation]:
    """Return what was cited: in the words of its source, and for which stretch of the text."""
    found = []
    for number, block in enumerate(blocks):
        notes = block.get("citations") or [] if block["type"] == "text" else []
        end = len(_text(blocks[: number + 1]) or "")
        found += [
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
    return found


def _usage(answers: list[dict[str, Any]], model: str) -> Usage:
    total = Usage(llm_call_count=0)
    for answer in answers:
        usage = answer.get("usage") or {}
        read = usage.get("cache_read_input_tokens") or 0
        written = usage.get("cache_creation_input_tokens") or 0
        prompt = (usage.get("input_tokens") or 0) + read + written
        drawn = usage.get("output_tokens") or 0
        total.prompt_tokens += prompt
        total.completion_tokens += drawn
        total.cached_tokens += read
        total.llm_call_count += 1
        cost = cost_usd(
            model,
            prompt_tokens=prompt,
            completion_tokens=drawn,
            cached_tokens=read,
            cache_write_tokens=written,
        )
        if cost is not None:
            total.cost_usd = (total.cost_usd or 0.0) + cost
    return total
