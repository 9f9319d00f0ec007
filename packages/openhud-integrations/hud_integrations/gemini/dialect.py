"""Gemini's generateContent as a dialect of the gateway, and of Gemini's provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hud.errors import NotFoundError
from hud.inference.dialects.dialect import (
    DialectRoute,
    ListedModel,
    NamedProvider,
    ProviderDialect,
    RouteCall,
    StatedBounds,
    counts_of,
)
from hud.inference.dialects.fields import Fields
from hud.inference.endpoints import Home
from hud.inference.prices import TokenCounts
from hud_integrations.gemini.answer import token_counts
from hud_integrations.gemini.codec import GeminiCodec

GEMINI = Home(
    "Gemini",
    "https://generativelanguage.googleapis.com",
    "GEMINI_BASE_URL",
    ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
)
METHODS = ("generateContent", "streamGenerateContent", "countTokens")
_CONFIGS = ("generation_config", "generationConfig")
_LIMITS = ("maxOutputTokens", "max_output_tokens")
_CANDIDATES = ("candidateCount", "candidate_count")


def method_call(parameters: Mapping[str, str], query: bytes) -> RouteCall:
    """Return the call in a path `{model}:{method}`. Raises `NotFoundError` for a method that models do not have."""
    name, _, method = parameters["call"].rpartition(":")
    fields: dict[str, Any] = {"model": name.removeprefix("models/"), "stream": False}
    match method:
        case "generateContent":
            return RouteCall("turn", method, fields)
        case "streamGenerateContent":
            events = b"alt=sse" in query
            return RouteCall(
                "turn", method, {**fields, "stream": True, "server_sent_events": events}
            )
        case "countTokens":
            return RouteCall("count", method, fields)
    raise NotFoundError(f"There is no method {method!r} of models here.")


class GeminiDialect(ProviderDialect):
    """generateContent and its relatives: methods of a model, in the path."""

    family = "gemini"
    codec = GeminiCodec()
    client = codec
    routes = (
        DialectRoute(
            "generate_content",
            (
                "/models/{call:path}",
                "/v1/models/{call:path}",
                "/v1alpha/models/{call:path}",
                "/v1beta/models/{call:path}",
            ),
            "Gemini's methods: `{model}:generateContent`, `:streamGenerateContent` and `:countTokens`.",
            method_call,
        ),
        DialectRoute(
            "list_gemini_models",
            ("/v1alpha/models", "/v1beta/models"),
            "Every model of the team, in Gemini's dialect.",
            RouteCall("models"),
            method="GET",
        ),
        DialectRoute(
            "one_gemini_model",
            ("/v1alpha/models/{model:path}", "/v1beta/models/{model:path}"),
            "One model, in Gemini's dialect.",
            RouteCall("model"),
            method="GET",
        ),
    )
    prefixes = ("/v1beta/", "/v1alpha/")
    methods = tuple(f":{method}" for method in METHODS)
    marks = frozenset({b"x-goog-api-key"})
    key_header = b"x-goog-api-key"
    sent_headers = frozenset({b"x-goog-api-client"})
    usage_fields = ("usageMetadata", "usage_metadata")
    seals_thoughts = True
    provider = NamedProvider(
        "gemini",
        GEMINI,
        prefixes=("gemini-",),
        listed=("gemini-3-pro-preview", "gemini-3.5-flash", "gemini-2.5-pro", "gemini-2.5-flash"),
        agent="gemini",
    )
    base_path = "/v1beta"
    model_in_path = True
    agent = "gemini"

    def models(self, models: Sequence[ListedModel]) -> dict[str, Any]:
        return {"models": [self.model(model) for model in models]}

    def model(self, model: ListedModel) -> dict[str, Any]:
        lengths = {"inputTokenLimit": model.context, "outputTokenLimit": model.context}
        return {
            "name": f"models/{model.name}",
            "baseModelId": model.name,
            "version": "1",
            "displayName": model.display,
            "supportedGenerationMethods": list(METHODS),
            **({} if model.context is None else lengths),
        }

    def counted_request(self, body: Fields) -> Fields:
        inner = body.inner("generateContentRequest")
        return body if inner is None else Fields({**inner.values, "model": body.values["model"]})

    def counted(self, tokens: int) -> dict[str, Any]:
        return {"totalTokens": tokens}

    def token_counts(self, usage: dict[str, Any]) -> TokenCounts:
        return token_counts(usage)

    def stated_bounds(self, action: str, values: Mapping[str, Any]) -> StatedBounds:
        config = _config(values)
        limits = counts_of([config.get(name) for name in _LIMITS])
        candidates = counts_of([config.get(name) for name in _CANDIDATES])
        return StatedBounds(max(limits, default=None), max(candidates, default=1))

    def bounded(self, action: str, values: Mapping[str, Any], tokens: int) -> dict[str, Any]:
        others = {name: value for name, value in values.items() if name not in _CONFIGS}
        settings = {name: value for name, value in _config(values).items() if name not in _LIMITS}
        return {**others, "generationConfig": {**settings, "maxOutputTokens": tokens}}


def _config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a request, in either spelling of their name."""
    config: dict[str, Any] = {}
    for name in _CONFIGS:
        if isinstance(values.get(name), dict):
            config.update(values[name])
    return config


DIALECT = GeminiDialect()
