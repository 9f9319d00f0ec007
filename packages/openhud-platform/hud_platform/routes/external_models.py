"""Routes of models that other servers sample: a provider's, a training backend's, and those of this platform on further servers.

POST /v2/models/provide     POST /v2/models/backend     PUT /v2/models/{id}/servers
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import field_validator

from hud.errors import UsageError
from hud.inference.dialects.registry import provider_dialect
from hud_platform.dependencies import ADMIN, READ, EnginePart, Models, StrictBody
from hud_platform.models.records import BackendConfig, ProviderConfig, ServersConfig
from hud_platform.routes.model_responses import shown_model
from hud_platform.serving.calls import ChangeServers, ForgetModel

router = APIRouter(prefix="/v2/models", tags=["models"], dependencies=READ)


class ProvideRequest(StrictBody):
    """Register a provider's model."""

    name: str
    provider: ProviderConfig

    @field_validator("provider")
    @classmethod
    def _registered(cls, provider: ProviderConfig) -> ProviderConfig:
        try:
            provider_dialect(provider.dialect)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return provider


class BackendRequest(StrictBody):
    """Register a base model of a training backend, which samples and trains it."""

    name: str
    backend: BackendConfig


class ServersRequest(StrictBody):
    """Set the servers that sample a model; none: this platform."""

    servers: ServersConfig | None


# Privileged: it sets an address that this server will call, and the key that is sent there.
@router.post("/provide", dependencies=ADMIN)
def provide(registry: Models, body: ProvideRequest) -> dict[str, Any]:
    return shown_model(registry.provide(body.name, body.provider))


# Privileged, as for providers.
@router.post("/backend", dependencies=ADMIN)
async def add_on_backend(registry: Models, body: BackendRequest) -> dict[str, Any]:
    from hud_platform.models.backend_models import register_on_backend  # Imports torch.

    return shown_model(
        await asyncio.to_thread(register_on_backend, registry, body.name, body.backend)
    )


# Privileged, as for providers: it sets an address that this server will call, and the key that is sent there.
@router.put("/{model_id}/servers", dependencies=ADMIN)
async def set_servers(
    registry: Models, engine: EnginePart, model_id: str, body: ServersRequest
) -> dict[str, Any]:
    before = registry.model(model_id)
    changed = await asyncio.to_thread(registry.sample_on, before, body.servers)
    new = changed.config.servers
    if new is not None and new.differs_in_urls_alone(before.config.servers):
        await engine.call(changed, ChangeServers(urls=new.urls))
    else:
        await engine.call(changed, ForgetModel())
    return shown_model(changed)
