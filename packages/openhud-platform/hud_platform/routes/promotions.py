"""Route of promotions: POST /v2/models/{id}/promote."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field

from hud.client.contributor import HEADER, read_contributor
from hud.errors import HudError
from hud.eval.results.promotion_gate import Decision, Gate
from hud_platform.access.audit_log import Action
from hud_platform.dependencies import TRAIN, Audit, EnginePart, LedgerPart, Models, StrictBody, Who
from hud_platform.models.head_decision import HeadDecision
from hud_platform.models.promotion import (
    Evidence,
    find_candidate,
    judge,
    record_of,
)
from hud_platform.models.records import PROMOTION, CheckpointRecord, ModelRecord
from hud_platform.serving.calls import MoveHead

router = APIRouter(prefix="/v2/models", tags=["models"], dependencies=TRAIN)


class PromoteRequest(StrictBody):
    """Make a checkpoint the head if the gate accepts the evidence of two jobs."""

    checkpoint_id: str
    """Id of a checkpoint, a unique start of one, or its name."""
    source_model_id: str | None = None
    """Fork with the checkpoint; None: the model itself."""
    jobs: tuple[str, str]
    """Jobs of the head and of the candidate: the same tasks on the same seeds."""
    gate: Gate = Field(default_factory=Gate)
    subsets: dict[str, list[str]] = Field(default_factory=dict)
    """Slugs of the tasks of each subset, by `COLUMN=VALUE`."""
    force: bool = False
    """Move the head regardless of the decision; recorded with the checkpoint."""


@router.post("/{model_id}/promote")
async def promote(
    request: Request,
    registry: Models,
    engine: EnginePart,
    ledger: LedgerPart,
    who: Who,
    audit: Audit,
    model_id: str,
    body: PromoteRequest,
) -> dict[str, Any]:
    evidence = Evidence(body.jobs, body.gate, body.subsets)

    def judged() -> tuple[ModelRecord, ModelRecord, CheckpointRecord, Decision]:
        ledger.flush()  # It holds the turns of the last half second.
        model = registry.model(model_id)
        source = registry.model(body.source_model_id or model.id)
        node = find_candidate(registry, model, source, body.checkpoint_id)
        return model, source, node, judge(registry, model, source, node, evidence)

    model, source, node, decision = await asyncio.to_thread(judged)
    forced = body.force and not decision.promoted
    record = await asyncio.to_thread(record_of, registry, decision, evidence, source, node, forced)
    if not (decision.promoted or forced):
        return {**record, "moved": False, "checkpoint_id": node.id}
    registry.leases.refuse_if_held(model.id, model.slug, "moved to another checkpoint")
    tree = registry.tree
    chosen = node if source.id == model.id else await asyncio.to_thread(tree.adopt, model, node)
    client = read_contributor(request.headers.get(HEADER), who.key_id)
    compared = HeadDecision(compared_with=model.head_checkpoint_id, metrics={PROMOTION: record})
    try:
        await engine.call(model, MoveHead(checkpoint=chosen.id, decision=compared), client)
    except HudError:
        if chosen is not node:
            await asyncio.to_thread(tree.withdraw, chosen)
        raise
    action: Action = "head forced" if forced else "head promoted"
    moved = {"model_id": model.id, "before": model.head_checkpoint_id, "after": chosen.id}
    await asyncio.to_thread(audit.note, action, model.slug, **moved)
    return {**record, "moved": True, "checkpoint_id": chosen.id}
