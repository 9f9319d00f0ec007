"""Anthropic's Messages API as a dialect of the gateway, and of Claude's provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hud.inference.dialects.dialect import (
    DialectRoute,
    ListedModel,
    NamedProvider,
    ProviderDialect,
    RouteCall,
)
from hud.inference.endpoints import Home
from hud.inference.prices import TokenCounts
from hud_integrations.anthropic.answer import token_counts
from hud_integrations.anthropic.codec import DEFAULT_TOKENS, VERSION, AnthropicCodec

ANTHROPIC = Home(
    "Anthropic", "https://api.anthropic.com", "ANTHROPIC_BASE_URL", ("ANTHROPIC_API_KEY",)
)


class AnthropicDialect(ProviderDialect):
    """The Messages API."""

    family = "anthropic"
    codec = AnthropicCodec()
    client = codec
    routes = (
        DialectRoute(
            "messages",
            ("/messages", "/v1/messages"),
            "Anthropic's messages.",
            RouteCall("turn", "messages"),
            needed=("model", "messages", "max_tokens"),
        ),
        DialectRoute(
            "count_tokens",
            ("/messages/count_tokens", "/v1/messages/count_tokens"),
            "Anthropic's count of a prompt's tokens.",
            RouteCall("count", "messages/count_tokens"),
            needed=("model", "messages"),
        ),
    )
    prefixes = ("/messages", "/v1/messages")
    marks = frozenset({b"anthropic-version"})
    key_header = b"x-api-key"
    sent_headers = frozenset({b"anthropic-version", b"anthropic-beta"})
    session_headers = frozenset({b"x-claude-code-session-id", b"x-claude-code-agent-id"})
    returned_headers = ("anthropic-ratelimit-",)
    seals_thoughts = True
    provider = NamedProvider(
        "anthropic",
        ANTHROPIC,
        prefixes=("claude-",),
        listed=("claude-opus-5", "claude-sonnet-5", "claude-sonnet-4-6", "claude-haiku-4-5"),
        agent="claude",
    )
    base_path = "/v1"
    headers = VERSION
    default_tokens = DEFAULT_TOKENS
    continues_turns = True
    agent = "claude"

    def models(self, models: Sequence[ListedModel]) -> dict[str, Any]:
        return {
            "data": [self.model(model) for model in models],
            "has_more": False,
            "first_id": models[0].name if models else None,
            "last_id": models[-1].name if models else None,
        }

    def model(self, model: ListedModel) -> dict[str, Any]:
        return {
            "type": "model",
            "id": model.name,
            "display_name": model.display,
            "created_at": model.created.isoformat().replace("+00:00", "Z"),
            "max_input_tokens": model.context,
            "max_tokens": model.context,
        }

    def token_counts(self, usage: dict[str, Any]) -> TokenCounts:
        return token_counts(usage)


DIALECT = AnthropicDialect()
