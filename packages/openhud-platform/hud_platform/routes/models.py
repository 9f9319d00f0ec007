"""Routes of models: HUD's routes, and further ones of this platform.

GET  /v2/models                 GET  /v2/models/resolve?model=SLUG
POST /v2/models/fork            POST /v2/models/create     POST /v2/models/add
GET, DELETE /v2/models/{id}     GET  /v2/models/{id}/lease     GET  /v2/models/{id}/architecture
POST /v2/models/{id}/rewards

Those of checkpoints and the head are in `checkpoints`, of exports in `model_exports`, of providers and other servers in
`external_models`, of promotions in `promotions`.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from hud import exact_json
from hud.engine.config import DecoderConfig
from hud.engine.memory.tower import tower_of
from hud.errors import NotFoundError, UsageError
from hud.learning.training_calls import RateRequest
from hud_platform.access.secrets import Secrets
from hud_platform.dependencies import (
    ADMIN,
    READ,
    RUN,
    TRAIN,
    Audit,
    EnginePart,
    Models,
    Offset,
    StrictBody,
    TeamSecrets,
)
from hud_platform.models.provider_models import builtin_records, find_builtin
from hud_platform.models.records import ModelConfig, ModelRecord, missing_files_named
from hud_platform.models.registry import Registry
from hud_platform.routes.model_responses import shown_model, shown_with_folder
from hud_platform.serving.calls import ForgetModel
from hud_platform.store import tables
from hud_platform.training.unsaved_steps import UnsavedSteps

router = APIRouter(prefix="/v2/models", tags=["models"], dependencies=READ)
ModelLimit = Annotated[int | None, Query(ge=0, le=2**31 - 1)]


class ForkRequest(BaseModel):
    """Create a model from a checkpoint of another."""

    source_model_id: str
    name: str
    config: ModelConfig | None = None
    checkpoint: str = "head"


class Sizes(StrictBody):
    """Sizes of a small model; those that are absent have the defaults of `create_tiny`."""

    vocab_size: int | None = None
    hidden: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    max_context: int | None = None


class CreateRequest(StrictBody):
    """Create a small random model with a tokenizer trained on texts."""

    name: str
    texts: list[str]
    preset: str = "tiny"
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    sizes: Sizes = Sizes()
    config: ModelConfig | None = None


class AddRequest(StrictBody):
    """Register a Hugging Face folder or GGUF file of the server's machine, a pretrained model by its name, or a hub id."""

    source: str
    name: str
    config: ModelConfig | None = None


@router.get("")
def list_models(
    registry: Models, secrets: TeamSecrets, limit: ModelLimit = None, offset: Offset = 0
) -> dict[str, Any]:
    """The team's models, all or a page of them; then providers' models that need no registration."""
    own, total = registry.page(limit, offset)
    others = builtin_records(secrets)
    slugs = tables.models.c.slug
    taken, _ = registry.page(None, 0, slugs.in_([model.slug for model in others]))
    free = {model.slug for model in others} - {model.slug for model in taken}
    others = [model for model in others if model.slug in free]
    last = None if limit is None else max(0, offset + limit - total)
    listed = [*own, *others[max(0, offset - total) : last]]
    count = total + len(others)
    return {
        "items": [_with_steps(registry, model, shown_model(model)) for model in listed],
        "total": count,
        "limit": count if limit is None else limit,
        "offset": offset,
    }


@router.get("/resolve")
def resolve(registry: Models, secrets: TeamSecrets, model: str) -> dict[str, Any]:
    record = _found(registry, secrets, model)
    return _with_steps(registry, record, shown_with_folder(record))


@router.post("/fork", dependencies=TRAIN)
def fork(registry: Models, audit: Audit, body: ForkRequest) -> dict[str, Any]:
    checkpoint = registry.tree.find(registry.model(body.source_model_id), body.checkpoint)
    made = registry.fork(body.source_model_id, body.name, config=body.config, checkpoint=checkpoint)
    audit.note("model forked", made.slug, model_id=made.id, source=body.source_model_id)
    return shown_model(made)


@router.post("/create", dependencies=TRAIN)
async def create(registry: Models, body: CreateRequest) -> dict[str, Any]:
    made = await asyncio.to_thread(
        registry.create,
        body.name,
        body.texts,
        preset=body.preset,
        seed=body.seed,
        sizes=body.sizes.model_dump(exclude_none=True),
        config=body.config,
    )
    return shown_model(made)


# Folders of the server's disk are only for admins of the first team; other teams add models from the hub.
@router.post("/add", dependencies=ADMIN)
async def add(registry: Models, body: AddRequest) -> dict[str, Any]:
    made = await asyncio.to_thread(registry.add, body.source, body.name, config=body.config)
    return await asyncio.to_thread(shown_with_folder, made)


@router.get("/{model_id}")
def describe(registry: Models, secrets: TeamSecrets, model_id: str) -> dict[str, Any]:
    record = _found(registry, secrets, model_id)
    return _with_steps(registry, record, shown_model(record))


def _with_steps(registry: Registry, model: ModelRecord, shown: dict[str, Any]) -> dict[str, Any]:
    """Return a shown model, a trainable one with `unsaved_steps`: optimizer steps on disk that no checkpoint holds."""
    if not shown["is_trainable"]:
        return shown
    return {**shown, "unsaved_steps": UnsavedSteps(registry.tree, model.id).count(model)}


@router.delete("/{model_id}", dependencies=TRAIN)
async def remove(
    registry: Models, engine: EnginePart, audit: Audit, model_id: str
) -> dict[str, Any]:
    model = registry.model(model_id)
    removed = await asyncio.to_thread(registry.remove, model.id)
    await engine.call(model, ForgetModel())
    await asyncio.to_thread(audit.note, "model removed", model.slug, model_id=model.id)
    return shown_model(removed)


@router.post("/{model_id}/rewards", dependencies=RUN)
async def rate(
    registry: Models, engine: EnginePart, model_id: str, body: RateRequest
) -> dict[str, Any]:
    """Rate conversations by a reward model."""
    model = await asyncio.to_thread(registry.model, model_id)
    rates: dict[str, Any] = exact_json.loads(await engine.call(model, body))
    return rates


@router.get("/{model_id}/architecture")
def architecture(registry: Models, model_id: str) -> dict[str, Any]:
    from hud.engine.pretrained import weight_count  # Imports torch.

    model = registry.model(model_id)
    if model.config.provider is not None:
        raise UsageError(f"{model.slug!r} has no weights on this platform: its provider has them.")
    with missing_files_named(model):
        tower = tower_of(model.folder)
        return {
            **asdict(DecoderConfig.from_folder(model.folder)),
            "tower": None if tower is None else asdict(tower),
            "parameters": weight_count(model.folder),
        }


@router.get("/{model_id}/lease")
def lease(registry: Models, model_id: str) -> dict[str, Any]:
    holder = registry.leases.holder(registry.model(model_id).id)
    if holder is None:
        return {"held": False}
    return {
        "held": True,
        "pid": holder.pid,
        "host": holder.host,
        "command": holder.command,
        "since": holder.acquired_at.isoformat(),
    }


def _found(registry: Registry, secrets: Secrets, reference: str) -> ModelRecord:
    """Return a model of the team, or a provider's model that needs no registration."""
    try:
        return registry.model(reference)
    except NotFoundError:
        builtin = find_builtin(reference, secrets)
        if builtin is None:
            raise
        return builtin
