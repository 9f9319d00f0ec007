"""OpenAI's Responses API as a dialect of the gateway, and OpenAI as a provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hud.inference.dialects.chat_completions.dialect import (
    FAMILY,
    LIMITS,
    RETURNED_HEADERS,
    SENT_HEADERS,
)
from hud.inference.dialects.dialect import (
    Dialect,
    DialectRoute,
    NamedProvider,
    RouteCall,
    StatedBounds,
)
from hud.inference.dialects.fields import Fields
from hud.inference.endpoints import Home
from hud.inference.prices import TokenCounts
from hud.trace import ChatMessage
from hud_integrations.openai.answer import token_counts
from hud_integrations.openai.codec import ResponsesCodec
from hud_integrations.openai.conversation import read_items

OPENAI = Home("OpenAI", "https://api.openai.com/v1", "OPENAI_BASE_URL", ("OPENAI_API_KEY",))
COMPACT = "responses/compact"


class ResponsesDialect(Dialect):
    """The Responses API, whose answers are stored for `previous_response_id`."""

    family = FAMILY
    codec = ResponsesCodec()
    routes = (
        DialectRoute(
            "responses",
            ("/responses", "/v1/responses"),
            "OpenAI's responses; they are stored for `previous_response_id` unless `store` is false.",
            RouteCall("turn", "responses"),
            needed=("model", "input"),
        ),
        DialectRoute(
            "count_input_tokens",
            ("/responses/input_tokens", "/v1/responses/input_tokens"),
            "OpenAI's count of a prompt's tokens.",
            RouteCall("count", "responses/input_tokens"),
            needed=("model", "input"),
        ),
        DialectRoute(
            "compact",
            ("/responses/compact", "/v1/responses/compact"),
            "OpenAI's compaction of a conversation, by providers that have it; this server's models refuse it.",
            RouteCall(
                "forward",
                COMPACT,
                refusal="has no compaction: it is OpenAI's, for its own models. Send a shorter conversation.",
            ),
            needed=("model",),
        ),
        DialectRoute(
            "stored_response",
            ("/responses/{id}", "/v1/responses/{id}"),
            "A stored response.",
            RouteCall("stored"),
            method="GET",
        ),
        DialectRoute(
            "forget_response",
            ("/responses/{id}", "/v1/responses/{id}"),
            "Delete a stored response.",
            RouteCall("delete"),
            method="DELETE",
        ),
    )
    prefixes = ("/responses", "/v1/responses")
    sent_headers = SENT_HEADERS
    session_headers = frozenset(
        {b"session-id", b"thread-id", b"x-codex-window-id", b"x-codex-turn-metadata"}
    )
    returned_headers = RETURNED_HEADERS
    seals_thoughts = True
    limits = ("max_output_tokens", *LIMITS)
    reader = codec
    provider = NamedProvider(
        "openai",
        OPENAI,
        prefixes=("gpt-", "o1", "o3", "o4", "chatgpt-", "codex-", "computer-use-"),
        listed=("gpt-5.6", "gpt-5.4-mini", "gpt-5", "gpt-5-mini", "gpt-5-nano", "gpt-4o-mini"),
        agent="openai",
    )

    def counted(self, tokens: int) -> dict[str, Any]:
        return {"input_tokens": tokens, "object": "response.input_tokens"}

    def continued(self, body: Fields) -> str | None:
        return body.text("previous_response_id")

    def stored_turn(self, body: Fields, answer: Mapping[str, Any]) -> list[ChatMessage] | None:
        return (
            None if body.flag("store") is False else read_items(Fields({"input": answer["output"]}))
        )

    def deleted(self, identifier: str) -> dict[str, Any]:
        return {"id": identifier, "object": "response", "deleted": True}

    def token_counts(self, usage: dict[str, Any]) -> TokenCounts:
        return token_counts(usage)

    def stated_bounds(self, action: str, values: Mapping[str, Any]) -> StatedBounds:
        bounds = super().stated_bounds(action, values)
        return replace(bounds, settable=action != COMPACT)


DIALECT = ResponsesDialect()
