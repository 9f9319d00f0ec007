"""Routes of checkpoints: a model's tree and its head.

GET  /v2/models/{id}/checkpoints                    POST /v2/models/{id}/prompts     PUT /v2/models/{id}/head
GET, PUT /v2/models/{id}/checkpoints/{id}           POST /v2/models/{id}/prune
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from hud import exact_json
from hud.client.contributor import HEADER, read_contributor
from hud.errors import NotFoundError, UsageError
from hud.trace import dashed
from hud_platform.dependencies import (
    READ,
    TRAIN,
    Audit,
    EnginePart,
    Limit,
    Models,
    Offset,
    Steps,
    StrictBody,
    Who,
)
from hud_platform.models.promotion import goes_round_the_gate
from hud_platform.models.records import ModelRecord
from hud_platform.models.registry import Registry
from hud_platform.routes.model_responses import shown_checkpoint
from hud_platform.serving.calls import MoveHead

MOST_PROMPT = 100_000
"""Characters of a model's own system prompt."""
CHECKPOINTS_AT_ONCE = 500
"""Checkpoints that a listing holds in memory at a time."""

router = APIRouter(prefix="/v2/models", tags=["models"], dependencies=READ)


class PromptRequest(StrictBody):
    """Add a system prompt to a model's tree; an empty one takes the head's away."""

    text: str = Field(max_length=MOST_PROMPT)


class NameRequest(StrictBody):
    """Name a checkpoint, so that its files are never pruned."""

    name: str


class HeadRequest(BaseModel):
    """Move the head to a checkpoint: an id, a unique start of one, a name, or `base`."""

    checkpoint_id: str


class PruneRequest(BaseModel):
    """Delete the files of all checkpoints except these; heads, named ones, and those that forks need stay as well."""

    keep: list[str]
    weights_only: list[str] = []
    """Kept checkpoints whose optimizer state is deleted. Training from such a one begins with new moments."""


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


def _node(registry: Registry, model: ModelRecord, reference: str) -> str:
    """Return the id of a checkpoint. Raises `NotFoundError` for `base` if it is not a checkpoint."""
    node_id = registry.tree.find(model, reference)
    if node_id is None:
        raise NotFoundError(f"Model {model.slug!r} has base weights that are not a checkpoint.")
    return node_id
