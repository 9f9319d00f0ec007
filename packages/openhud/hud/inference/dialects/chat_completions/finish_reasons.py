"""Finish reasons of servers with chat completions, mapped to `Completion.finish_reason`."""

from __future__ import annotations

from typing import Any

from hud.inference.dialects.tool_calls import MALFORMED, check_reason, plain_reason

_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
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
    "maxtokens": "length",
    "max_output_tokens": "length",
    "max_new_tokens": "length",
    "max_completion_tokens": "length",
    "max_length": "length",
    "token_limit": "length",  # watsonx
    "truncated": "length",
    "incomplete": "length",
    "refusal": "content_filter",
    "safety": "content_filter",
    "recitation": "content_filter",
    "blocklist": "content_filter",
    "prohibited_content": "content_filter",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
    "sensitive": "content_filter",  # GLM
    "error_toxic": "content_filter",  # Cohere
    "error_limit": "context_full",
    "model_context_window_exceeded": "context_full",  # GLM
    "model_length": "context_full",  # Mistral
    "malformed_function_call": MALFORMED,
    "malformed_response": MALFORMED,
    "unexpected_tool_call": MALFORMED,
}
"""`Completion.finish_reason` by a server's word in lower case, with `_` between its parts; other words are unchanged."""
_UNFINISHED = ("null", "none", "not_finished", "unfinished")
"""Words of servers that send a reason with each chunk, before the last one."""


def read_reason(word: Any) -> str | None:
    """Return the finish reason for a server's word, None without one. Raises `BrokenAnswer` for a failure.

    SGLang's own API sends an object with the word.
    """
    if isinstance(word, dict):
        word = word.get("type")
    plain = plain_reason(word)
    if not word or plain in _UNFINISHED:
        return None
    check_reason(word)
    return _REASONS.get(plain, str(word))
