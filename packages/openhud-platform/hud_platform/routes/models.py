"""Routes of models and checkpoints: HUD's routes, and further ones of this platform.

GET    /v2/models                          GET  /v2/models/resolve?model=SLUG     POST /v2/models/fork
GET    /v2/models/{id}/checkpoints         PUT  /v2/models/{id}/head                     POST /v2/models/{id}/prompts
POST   /v2/models/create | /add | /provide | /backend
GET, DELETE /v2/models/{id}            POST /v2/models/{id}/export
GET    /v2/models/{id}/lease               POST /v2/models/{id}/prune     GET, PUT /v2/models/{id}/checkpoints/{id}
GET    /v2/models/{id}/architecture        POST /v2/models/{id}/rewards
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, field_validator

from hud import exact_json
from hud.client.contributor import HEADER, read_contributor
from hud.engine.config import DecoderConfig
from hud.engine.memory.tower import tower_of
from hud.engine.model_files.formats import format_named
from hud.errors import ConflictError, NotFoundError, PlatformError, UsageError
from hud.inference.dialects.registry import provider_dialect
from hud.learning.training_calls import RateRequest
from hud.trace import dashed
from hud_platform.access.secrets import Secrets
from hud_platform.dependencies import (
    ADMIN,
    READ,
    RUN,
    TRAIN,
    Audit,
    EnginePart,
    Limit,
    Models,
    Offset,
    Steps,
    StrictBody,
    Team,
    TeamSecrets,
    Who,
)
from hud_platform.exports.hub_upload import check_repository, create_repository, upload
from hud_platform.exports.model_card import card_subject, write_card
from hud_platform.models.adapter_export import export_adapter
from hud_platform.models.promotion import goes_round_the_gate
from hud_platform.models.provider_models import builtin_records, find_builtin
from hud_platform.models.records import (
    BASE,
    FOLDER,
    BackendConfig,
    ModelConfig,
    ModelRecord,
    ProviderConfig,
    ServersConfig,
)
from hud_platform.models.registry import Registry
from hud_platform.models.weight_sources import machine_path
from hud_platform.routes.model_responses import shown_checkpoint, shown_model, shown_with_folder
from hud_platform.serving.calls import ChangeServers, ExportModel, ForgetModel, MoveHead
from hud_platform.store.tables import LOCAL_TEAM
from hud_platform.training.unsaved_steps import UnsavedSteps

MOST_PROMPT = 100_000
"""Characters of a model's own system prompt."""
CHECKPOINTS_AT_ONCE = 500
"""Checkpoints that a listing holds in memory at a time."""

router = APIRouter(prefix="/v2/models", tags=["models"], dependencies=READ)


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


class PromptRequest(StrictBody):
    """Add a system prompt to a model's tree; an empty one takes the head's away."""

    text: str = Field(max_length=MOST_PROMPT)


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


class NameRequest(StrictBody):
    """Name a checkpoint, so that its files are never pruned."""

    name: str


class HeadRequest(BaseModel):
    """Move the head to a checkpoint: an id, a unique start of one, a name, or `base`."""

    checkpoint_id: str


class ExportRequest(BaseModel):
    """Export a model with its card: as a Hugging Face folder or one file, an adapter merged; or its adapter alone."""

    folder: str
    checkpoint_id: str | None = None
    form: str = FOLDER
    """`hf`, `peft`, or the name of a format of model files (`hud.model_files`)."""
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """Type of a file's weights; null: that of the model."""
    push: str | None = None
    """Id of a new repository on the Hugging Face hub, OWNER/NAME; null: none. The server's token of the hub is used."""
    public: bool = False
    """Whether everyone may read that repository."""


class PruneRequest(BaseModel):
    """Delete the files of all checkpoints except these; heads, named ones, and those that forks need stay as well."""

    keep: list[str]
    weights_only: list[str] = []
    """Kept checkpoints whose optimizer state is deleted. Training from such a one begins with new moments."""


@router.get("")
def list_models(
    registry: Models, secrets: TeamSecrets, limit: int | None = None, offset: int = 0
) -> dict[str, Any]:
    own = registry.models()
    taken = {model.slug for model in own}
    others = builtin_records(secrets)
    listed = [*own, *(model for model in others if model.slug not in taken)]
    last = None if limit is None else offset + limit
    return {
        "items": [
            _with_steps(registry, model, shown_model(model)) for model in listed[offset:last]
        ],
        "total": len(listed),
        "limit": limit if limit is not None else len(listed),
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


@router.get("/{model_id}/checkpoints", response_model=list[dict[str, Any]])
async def checkpoints(
    registry: Models, steps: Steps, model_id: str, limit: Limit | None = None, offset: Offset = 0
) -> StreamingResponse:
    """Return every checkpoint, or a page of them, oldest first, after waiting for steps in flight: a restarted client counts
    the steps already taken."""
    model = await asyncio.to_thread(registry.model, model_id)
    await steps.settled(model.id)
    now = await asyncio.to_thread(registry.model, model.id)
    rows = _checkpoint_rows(registry, now, limit, offset)
    return StreamingResponse(rows, media_type="application/json")


def _checkpoint_rows(
    registry: Registry, model: ModelRecord, limit: int | None, offset: int
) -> Iterator[bytes]:
    """Yield a JSON array of checkpoints; a page of `CHECKPOINTS_AT_ONCE` is in memory at a time."""
    ids = registry.tree.ids(model, limit, offset)
    separator = b"["
    for start in range(0, len(ids), CHECKPOINTS_AT_ONCE):
        nodes = registry.tree.records(ids[start : start + CHECKPOINTS_AT_ONCE])
        if nodes:
            # One piece for each page: each piece costs a change of threads.
            yield (
                separator + b",".join(exact_json.dumps(shown_checkpoint(n, model)) for n in nodes)
            )
            separator = b","
    yield b"[]" if separator == b"[" else b"]"


@router.get("/{model_id}/checkpoints/{checkpoint_id}")
def checkpoint(registry: Models, model_id: str, checkpoint_id: str) -> dict[str, Any]:
    model = registry.model(model_id)
    return shown_checkpoint(registry.tree.get(_node(registry, model, checkpoint_id)), model)


@router.put("/{model_id}/checkpoints/{checkpoint_id}", dependencies=TRAIN)
def name_checkpoint(
    registry: Models, model_id: str, checkpoint_id: str, body: NameRequest
) -> dict[str, Any]:
    model = registry.model(model_id)
    node = _node(registry, model, checkpoint_id)
    return shown_checkpoint(registry.tree.rename(model, node, body.name), model)


@router.post("/{model_id}/prompts", dependencies=TRAIN)
async def add_prompt(
    registry: Models, audit: Audit, model_id: str, body: PromptRequest
) -> dict[str, Any]:
    """Add a checkpoint with the head's weights and a system prompt; the head does not move."""
    model = registry.model(model_id)
    if model.config.provider is not None:
        raise UsageError(
            f"{model.slug!r} lives with its provider and has no checkpoints; send the prompt with each request."
        )
    node = await asyncio.to_thread(registry.tree.add_prompt, model, body.text)
    await asyncio.to_thread(
        audit.note, "prompt added", model.slug, model_id=model.id, after=node.id
    )
    return shown_checkpoint(node, model)


@router.put("/{model_id}/head", dependencies=TRAIN)
async def set_head(
    request: Request,
    registry: Models,
    engine: EnginePart,
    who: Who,
    audit: Audit,
    model_id: str,
    body: HeadRequest,
) -> dict[str, Any]:
    model = registry.model(model_id)
    checkpoint = registry.tree.find(model, body.checkpoint_id)
    client = read_contributor(request.headers.get(HEADER), who.key_id)
    await engine.call(model, MoveHead(checkpoint=checkpoint), client)
    moved = {"model_id": model.id, "before": model.head_checkpoint_id, "after": checkpoint}
    await asyncio.to_thread(audit.note, "head moved", model.slug, **moved)
    round_the_gate = await asyncio.to_thread(goes_round_the_gate, registry, model, checkpoint)
    return {
        "id": dashed(model.id),
        "model_name": model.slug,
        "checkpoint_id": checkpoint,
        "round_the_gate": round_the_gate,
    }


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


@router.post("/{model_id}/export", dependencies=ADMIN)
async def export(
    registry: Models, engine: EnginePart, team: Team, model_id: str, body: ExportRequest
) -> dict[str, Any]:
    model = registry.model(model_id)
    wanted = body.checkpoint_id or "head"
    checkpoint = registry.tree.find(model, wanted)
    _require_disk(team)
    if body.form not in (FOLDER, "peft"):
        await asyncio.to_thread(format_named, body.form)
    elif body.dtype is not None:
        raise UsageError("A type of weights is set for a file, such as GGUF, alone.")
    if body.push is not None:
        await asyncio.to_thread(check_repository, body.push)
    folder = await asyncio.to_thread(_empty_folder, body.folder)
    if body.form == "peft":
        await asyncio.to_thread(export_adapter, registry, model, checkpoint, folder)
    else:
        wanted_form = {"form": body.form, "dtype": body.dtype}
        call = ExportModel(checkpoint=checkpoint, folder=str(folder), **wanted_form)
        await engine.call(model, call)
    subject = await asyncio.to_thread(card_subject, registry, model, checkpoint)
    await asyncio.to_thread(write_card, subject, folder, body.form, repository=body.push)
    shown = {"folder": str(folder), "checkpoint_id": checkpoint, "model": model.slug}
    if body.push is None:
        return shown
    await asyncio.to_thread(create_repository, body.push, private=not body.public)
    message = f"{model.slug} at {checkpoint or BASE}"
    url = await asyncio.to_thread(upload, folder, body.push, message=message)
    return {**shown, "url": url}


@router.post("/{model_id}/prune", dependencies=TRAIN)
async def prune(registry: Models, model_id: str, body: PruneRequest) -> dict[str, Any]:
    model = registry.model(model_id)
    registry.leases.refuse_if_held(model.id, model.slug, "pruned")
    unknown = {*body.keep, *body.weights_only}.difference(registry.tree.ids(model))
    if unknown:
        raise NotFoundError(f"Model {model.slug!r} has no checkpoint {min(unknown)!r}.")
    needed = registry.needed_checkpoints(model)
    pruned = await asyncio.to_thread(registry.tree.prune, model, needed | set(body.keep))
    lighter = set(body.weights_only) - needed
    await asyncio.to_thread(registry.tree.delete_states, model, lighter)
    return {"pruned": [node.id for node in pruned]}


def _require_disk(team: str) -> None:
    """Raise `PlatformError` 403 for teams other than the first one, whose admins operate the server."""
    if team != LOCAL_TEAM:
        raise PlatformError(
            "Folders of the server's disk are for admins of the first team. Ask one of them for an export.",
            403,
        )


def _empty_folder(path: str) -> Path:
    """Return a folder of this machine, made if necessary. Raises `ConflictError` if it holds something, `UsageError` if there is no such path."""
    folder = machine_path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConflictError(f"{folder} exists and is not empty; choose another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}.") from error
    return folder


def _found(registry: Registry, secrets: Secrets, reference: str) -> ModelRecord:
    """Return a model of the team, or a provider's model that needs no registration."""
    try:
        return registry.model(reference)
    except NotFoundError:
        builtin = find_builtin(reference, secrets)
        if builtin is None:
            raise
        return builtin


def _node(registry: Registry, model: ModelRecord, reference: str) -> str:
    """Return the id of a checkpoint. Raises `NotFoundError` for `base` if it is not a checkpoint."""
    node_id = registry.tree.find(model, reference)
    if node_id is None:
        raise NotFoundError(f"Model {model.slug!r} has base weights that are not a checkpoint.")
    return node_id
