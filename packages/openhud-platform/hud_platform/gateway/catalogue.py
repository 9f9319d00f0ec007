"""Resolution of model names for a team: a model of its registry, or a provider's model.
Resolved names are cached for a short time, so that requests on the hot path need no query. The head's checkpoint is
not cached: the engine reads it when sampling begins.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from hud.errors import NotFoundError, UsageError
from hud_platform.access.secrets import Secrets
from hud_platform.gateway.chat_formats import format_of
from hud_platform.gateway.local import LocalModel
from hud_platform.models.provider_models import (
    ProviderModel,
    builtin_model,
    provider_of,
    registered_model,
)
from hud_platform.models.records import BASE, ModelRecord, missing_files_named
from hud_platform.store.tables import LOCAL_TEAM

if TYPE_CHECKING:
    from hud_platform.models.registry import Registry

REMEMBERED_SECONDS = 2.0

Target = LocalModel | ProviderModel


class Catalogue:
    """Cached resolution of model names."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known: dict[tuple[str, str], tuple[float, Target]] = {}

    def remembered(self, team: str, name: str) -> Target | None:
        """Return a model from the cache, else None."""
        cached = self._known.get((team, name))
        return cached[1] if cached is not None and cached[0] > time.monotonic() else None

    async def find(self, team: str, name: str, checkpoint: str | None = None) -> Target:
        """Return the model behind `name` or `name@checkpoint`. Raises `NotFoundError`, with near matches."""
        reference = f"{name}@{checkpoint}" if checkpoint and "@" not in name else name
        target = self.remembered(team, reference)
        if target is None:
            target = await asyncio.to_thread(self._find, team, reference)
            now = time.monotonic()
            self._known = {key: cached for key, cached in self._known.items() if cached[0] > now}
            self._known[team, reference] = (now + REMEMBERED_SECONDS, target)
        return target

    def forget(self) -> None:
        """Clear the cache: a model that it holds was removed."""
        self._known.clear()

    async def provider(self, team: str, name: str) -> ProviderModel | None:
        """Return the provider's model with this name; None for any other name."""
        target = await asyncio.to_thread(self._record_or_provider, team, name)
        return target if isinstance(target, ProviderModel) else None

    def _find(self, team: str, reference: str) -> Target:
        name, _, checkpoint = reference.partition("@")
        target = self._record_or_provider(team, name)
        if isinstance(target, ProviderModel):
            if checkpoint:
                raise UsageError(f"{target.name!r} is a provider's model; it has no checkpoints.")
            return target
        target.check_answers()
        tree = self._registry.of(team).tree
        pinned, prompted = None, target.head_checkpoint_id
        if checkpoint and checkpoint != "head":
            prompted = tree.find(target, checkpoint)
            # None is the base here; for the engine it would be the head.
            pinned = prompted or BASE
        with missing_files_named(target):
            form = format_of(target.folder, target.config.tool_call_parser)
        return LocalModel(target, pinned, form, tree.system_prompt(prompted))

    def _record_or_provider(self, team: str, name: str) -> ModelRecord | ProviderModel:
        try:
            record = self._registry.of(team).model(name)
        except NotFoundError:
            provided = self._provided(team, name)
            if provided is None:
                raise
            return provided
        if record.config.provider is None:
            return record
        return registered_model(record, record.config.provider, Secrets(self._registry.home, team))

    def _provided(self, team: str, name: str) -> ProviderModel | None:
        provided = provider_of(name)
        if provided is None:
            return None
        provider, dialect = provided
        model = builtin_model(provider, dialect, name, Secrets(self._registry.home, team))
        if model.key is None and team != LOCAL_TEAM:
            raise NotFoundError(
                f"{name!r} is a model of {provider.name}, and your team has stored no key for it. "
                f"Store one: hud secrets set {provider.key_env}"
            )
        if model.key is None:
            raise NotFoundError(
                f"{name!r} is a model of {provider.name}, and this server has no key for it. "
                f"Set {provider.key_env} where the server runs, or register a URL: hud models add NAME --url URL"
            )
        return model
