"""Finish reasons of servers with chat completions, mapped to `Completion.finish_reason`."""

from __future__ import annotations

from typing import Any

from hud.inference.dialects.tool_calls import MALFORMED, check_reason

_REASONS = {
    "function_call": "tool_calls",
    # Servers that forward the word of a model's own dialect.
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "complete": "stop",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "refusal": "content_filter",
    "safety": "content_filter",
    "recitation": "content_filter",
    "blocklist": "content_filter",
    "prohibited_content": "content_filter",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
    "sensitive": "content_filter",  # GLM
    "model_context_window_exceeded": "context_full",  # GLM
    "model_length": "context_full",  # Mistral
    "malformed_function_call": MALFORMED,
    "malformed_response": MALFORMED,
    "unexpected_tool_call": MALFORMED,
}
"""`Completion.finish_reason` by a server's word in lower case; other words are unchanged."""


def read_reason(word: Any) -> str | None:
    """Return the finish reason for a server's word, None without one. Raises `BrokenAnswer` for a failure."""
    if not word:
        return None
    check_reason(word)
    return _REASONS.get(str(word).lower(), str(word))
