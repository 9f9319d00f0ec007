"""Lists of a team's models, in each dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from hud.errors import NotFoundError
from hud.platform.gateway.chat_formats import context_of
from hud.platform.gateway.exchange import Exchange
from hud.platform.gateway.providers import builtin_records, find_builtin
from hud.platform.models.records import ModelRecord
from hud.platform.secrets import Secrets

if TYPE_CHECKING:
    from hud.platform.gateway.catalogue import Catalogue
    from hud.platform.models.registry import Registry


class Listed(NamedTuple):
    """A model as it is listed."""

    name: str
    display: str
    owner: str
    created: datetime
    context: int | None
    """Context length in tokens; None for a provider's model, of which only the provider knows it."""


class ModelLists:
    """`GET /models` in the dialect of the client, which is recognized by its headers."""

    def __init__(self, registry: Registry, catalogue: Catalogue) -> None:
        self._registry = registry
        self._catalogue = catalogue

    async def all(self, team: str, exchange: Exchange, *, gemini: bool) -> dict[str, Any]:
        """Return every model."""
        models = await asyncio.to_thread(self._models, team)
        written = _dialect(exchange, gemini)
        rows = [written(model) for model in models]
        if written is _gemini:
            return {"models": rows}
        if written is _anthropic:
            return {
                "data": rows,
                "has_more": False,
                "first_id": models[0].name if models else None,
                "last_id": models[-1].name if models else None,
            }
        return {"object": "list", "data": rows}

    async def describe(
        self, team: str, name: str, exchange: Exchange, *, gemini: bool
    ) -> dict[str, Any]:
        """Return one model, by any of its names. Raises `NotFoundError` for an unknown name."""
        target = await self._catalogue.find(team, name.removeprefix("models/"))
        model = await asyncio.to_thread(self._model, team, target.name)
        pinned = name.partition("@")[2]
        if pinned:
            model = model._replace(name=f"{model.name}@{pinned}")
        return _dialect(exchange, gemini)(model)

    def _models(self, team: str) -> list[Listed]:
        own = self._registry.of(team).models()
        taken = {record.slug for record in own}
        others = [
            record
            for record in builtin_records(Secrets(self._registry.home, team))
            if record.slug not in taken
        ]
        return [_listed(record) for record in [*own, *others]]

    def _model(self, team: str, slug: str) -> Listed:
        for record in self._registry.of(team).models():
            if record.slug == slug:
                return _listed(record)
        record_of_provider = find_builtin(slug, Secrets(self._registry.home, team))
        if record_of_provider is None:
            raise NotFoundError(f"There is no model {slug!r}.")
        return _listed(record_of_provider)


def _listed(record: ModelRecord) -> Listed:
    provider = record.config.provider
    return Listed(
        record.slug,
        record.name,
        "openhud" if provider is None else provider.dialect,
        record.created_at,
        context_of(record.folder) if provider is None else None,
    )


def _dialect(exchange: Exchange, gemini: bool) -> Callable[[Listed], dict[str, Any]]:
    """Return the function that formats a model in the dialect of a request."""
    if gemini or exchange.header(b"x-goog-api-key"):
        return _gemini
    return _anthropic if exchange.header(b"anthropic-version") else _openai


def _openai(model: Listed) -> dict[str, Any]:
    # As vLLM and OpenRouter write the length; OpenAI's own list has none.
    lengths = {"max_model_len": model.context, "context_length": model.context}
    return {
        "id": model.name,
        "object": "model",
        "created": int(model.created.timestamp()),
        "owned_by": model.owner,
        **({} if model.context is None else lengths),
    }


def _anthropic(model: Listed) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.display,
        "created_at": model.created.isoformat().replace("+00:00", "Z"),
        "max_input_tokens": model.context,
        "max_tokens": model.context,
    }


def _gemini(model: Listed) -> dict[str, Any]:
    lengths = {"inputTokenLimit": model.context, "outputTokenLimit": model.context}
    return {
        "name": f"models/{model.name}",
        "baseModelId": model.name,
        "version": "1",
        "displayName": model.display,
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
        **({} if model.context is None else lengths),
    }
