"""The gateway's own dialects: chat completions, and completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hud.inference.dialects.chat_completions.codec import ChatCodec
from hud.inference.dialects.chat_completions.completions import DEFAULT_TOKENS, CompletionsCodec
from hud.inference.dialects.dialect import (
    Dialect,
    DialectRoute,
    ProviderDialect,
    RouteCall,
    StatedBounds,
    counts_of,
)

FAMILY = "openai"
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Fields of the family's dialects with the most tokens of an answer; servers read those of others, too."""
CHAT_CALL = RouteCall("turn", "chat/completions")
SENT_HEADERS = frozenset({b"openai-beta"})
RETURNED_HEADERS = ("openai-processing-ms", "openai-version")


class ChatDialect(ProviderDialect):
    """Chat completions, which most servers of models have."""

    family = FAMILY
    codec = ChatCodec()
    client = ChatCodec(limit="max_completion_tokens")
    routes = (
        DialectRoute(
            "chat_completions",
            ("/chat/completions", "/v1/chat/completions"),
            "OpenAI's chat completions, with `return_token_ids` and the other fields for training policies.",
            CHAT_CALL,
            needed=("model", "messages"),
        ),
    )
    prefixes = ("/chat/completions", "/v1/chat/", "/embeddings", "/v1/embeddings")
    sent_headers = SENT_HEADERS
    returned_headers = RETURNED_HEADERS
    limits = LIMITS
    base_path = "/chat/completions"


class CompletionsDialect(Dialect):
    """Completions: text is continued without a chat format."""

    family = FAMILY
    codec = CompletionsCodec()
    routes = (
        DialectRoute(
            "completions",
            ("/completions", "/v1/completions"),
            "OpenAI's older completions: text is continued without a chat format.",
            RouteCall("turn", "completions"),
            needed=("model", "prompt"),
        ),
    )
    prefixes = ("/completions", "/v1/completions")
    sent_headers = SENT_HEADERS
    returned_headers = RETURNED_HEADERS
    limits = ("max_tokens", *LIMITS)

    def stated_bounds(self, action: str, values: Mapping[str, Any]) -> StatedBounds:
        bounds = super().stated_bounds(action, values)
        answers = max(counts_of([values.get("n"), values.get("best_of")]), default=1)
        prompts = values.get("prompt")
        if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
            answers *= len(prompts)
        return replace(bounds, answers=answers, default=DEFAULT_TOKENS)


CHAT = ChatDialect()
COMPLETIONS = CompletionsDialect()
