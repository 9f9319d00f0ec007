"""Lists of a team's models, in each dialect."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hud.errors import HudError, NotFoundError
from hud.inference.dialects.dialect import Dialect, ListedModel
from hud_platform.access.secrets import Secrets
from hud_platform.gateway.chat_formats import context_of
from hud_platform.models.provider_models import builtin_records, find_builtin
from hud_platform.models.records import ModelRecord

if TYPE_CHECKING:
    from hud_platform.access.run_grant import RunGrant
    from hud_platform.gateway.catalogue import Catalogue
    from hud_platform.models.registry import Registry


class ModelLists:
    """`GET /models` in the dialect of the client."""

    def __init__(self, registry: Registry, catalogue: Catalogue) -> None:
        self._registry = registry
        self._catalogue = catalogue

    async def all(self, team: str, dialect: Dialect) -> dict[str, Any]:
        """Return every model."""
        return dialect.models(await asyncio.to_thread(self._models, team))

    async def describe(self, team: str, name: str, dialect: Dialect) -> dict[str, Any]:
        """Return one model, by any of its names. Raises `NotFoundError` for an unknown name."""
        target = await self._catalogue.find(team, name.removeprefix("models/"))
        model = await asyncio.to_thread(self._model, team, target.name)
        pinned = name.partition("@")[2]
        if pinned:
            model = model._replace(name=f"{model.name}@{pinned}")
        return dialect.model(model)

    async def of_run(
        self, team: str, run: RunGrant, name: str | None, dialect: Dialect
    ) -> dict[str, Any]:
        """Return the model of a run under any name, or the list of it alone (`name` None)."""
        model = await asyncio.to_thread(self._model, team, run.model)
        if name is None:
            return dialect.models([model])
        return dialect.model(model._replace(name=name.removeprefix("models/")))

    def _models(self, team: str) -> list[ListedModel]:
        own = self._registry.of(team).models()
        taken = {record.slug for record in own}
        others = [
            record
            for record in builtin_records(Secrets(self._registry.home, team))
            if record.slug not in taken
        ]
        return [_listed(record) for record in [*own, *others]]

    def _model(self, team: str, slug: str) -> ListedModel:
        for record in self._registry.of(team).models():
            if record.slug == slug:
                return _listed(record)
        record_of_provider = find_builtin(slug, Secrets(self._registry.home, team))
        if record_of_provider is None:
            raise NotFoundError(f"There is no model {slug!r}.")
        return _listed(record_of_provider)


def _listed(record: ModelRecord) -> ListedModel:
    provider = record.config.provider
    return ListedModel(
        record.slug,
        record.name,
        "openhud" if provider is None else provider.dialect,
        record.created_at,
        _context(record) if provider is None else None,
    )


def _context(record: ModelRecord) -> int | None:
    """Return the context length of a model; None for damaged files, which its first use names."""
    with suppress(HudError):
        return context_of(record.folder)
    return None
