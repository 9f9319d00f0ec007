"""Pages of models: the list, one model with its checkpoint tree, forks, and moving the head."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Depends, Form, Query
from fastapi.responses import Response

from hud.engine.sample.options import CacheFacts
from hud.train.monitoring.loss_metrics import loss_per_token
from hud_dashboard.page import Data, LaunchingPart, Offset, Pages, paged, see
from hud_dashboard.queries.model_tree import HEIGHT, rows_of, width_of
from hud_dashboard.queries.subject_labels import labels_of
from hud_platform.access.audit_log import Action
from hud_platform.dependencies import Audit, EnginePart, Models
from hud_platform.models.checkpoint_tree import CheckpointLink, is_named
from hud_platform.models.head_decision import HeadDecision
from hud_platform.models.promotion import Evidence, judge_recorded, record_of
from hud_platform.models.records import PROMOTION, CheckpointRecord, ModelRecord
from hud_platform.models.registry import Registry
from hud_platform.serving.calls import MoveHead
from hud_platform.serving.token_engine import EngineDownError

router = Pages()
ROWS_PER_PAGE = 100
"""Number of the tree's rows on a page."""
LINEAGE = 6
"""Number of checkpoints of the head's lineage on each page."""
RECENT_RUNS = 8


@router.page("/models", "models.html")
def models(registry: Models) -> Data:
    """The models of the team, newest first."""
    records = registry.models()
    slugs = {model.id: model.slug for model in records}
    summary = registry.tree.summary([model.id for model in records])
    items = [
        {
            **model_shown(model, slugs),
            "checkpoints": summary.get(model.id, (0, None))[0],
            "reward": summary.get(model.id, (0, None))[1],
        }
        for model in reversed(records)
    ]
    return {"items": items}


async def _loaded(engine: EnginePart) -> list[dict[str, Any]]:
    """Return the policies that the server has loaded, with their key-value caches."""
    try:
        loaded: list[dict[str, Any]] = (await engine.status())["models"]
    except EngineDownError:
        return []
    return loaded


@router.page("/models/{model_id}", "model.html")
def model(
    launching: LaunchingPart,
    loaded: Annotated[list[dict[str, Any]], Depends(_loaded)],
    model_id: str,
    checkpoint: Annotated[str, Query(max_length=200)] = "",
    everything: Annotated[bool, Query(alias="all")] = False,
    offset: Offset = 0,
) -> Data:
    """One model. Details of `checkpoint` (an id, a name, `head` or `base`) are shown next to the tree; `all`: no folds."""
    registry = launching.registry
    record = registry.model(model_id)
    slugs = {listed.id: listed.slug for listed in registry.models()}
    nodes = registry.tree.links(record)
    recorded = launching.runs.recent(record.id)
    scores = scores_of(recorded)
    selected = registry.tree.find(record, checkpoint or "head")
    to_keep = frozenset(node_id for node_id in (selected, *scores) if node_id is not None)
    rows = rows_of(
        nodes,
        record.config.origin_checkpoint,
        record.head_checkpoint_id,
        everything=everything,
        keep=to_keep,
        drawn=slice(offset, offset + ROWS_PER_PAGE),
    )
    page = rows[offset : offset + ROWS_PER_PAGE]
    ids = [row.node.id for row in page if row.node is not None]
    records = {node.id: node for node in registry.tree.records(ids)}
    shown = [
        {
            "kind": row.kind,
            "count": row.count,
            "x": row.x,
            "paths": row.paths,
            "node": None if row.node is None else node_shown(records[row.node.id], scores),
        }
        for row in page
        if row.node is None or row.node.id in records
    ]
    training = launching.launches.training(record.id)
    return {
        "model": model_shown(record, slugs),
        "cache": cache_of(record, loaded),
        "origin": record.config.origin_checkpoint,
        "base_score": scores.get(record.config.origin_checkpoint),
        "rows": shown,
        "lineage": lineage_of(nodes, record.head_checkpoint_id),
        **paged(len(rows), ROWS_PER_PAGE, offset),
        "folded": any(row.kind == "fold" for row in rows),
        "everything": everything,
        "height": HEIGHT,
        "width": width_of(rows),
        "prompts": [
            {"number": number, "id": node.id, "name": node.name, "text": node.system_prompt or ""}
            for number, node in enumerate(registry.tree.prompts(record), 1)
        ],
        "prompt": registry.tree.system_prompt(record.head_checkpoint_id),
        "selected": _selected(registry, record, nodes, selected, scores),
        "labels": labels_of(registry.store, launching.who.team_id, "checkpoint", selected or ""),
        "asked": bool(checkpoint),
        "runs": [
            {name: run[name] for name in ("id", "status", "next_step", "created_at")}
            for run in recorded[:RECENT_RUNS]
        ],
        "trained_by": None if training is None else training.run_id or "",
    }


@router.action("/models/{model_id}/fork", "train")
def fork(
    registry: Models, audit: Audit, model_id: str, name: Annotated[str, Form(max_length=200)] = ""
) -> Response:
    """Fork the model at its head."""
    made = registry.fork(registry.model(model_id).id, name)
    audit.note("model forked", made.slug, model_id=made.id, source=model_id)
    return see(f"/models/{made.slug}")


@router.action("/models/{model_id}/checkpoints/{checkpoint_id}/name", "train")
def name_checkpoint(
    registry: Models,
    model_id: str,
    checkpoint_id: str,
    name: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    """Name a checkpoint, so that its files are never pruned."""
    record = registry.model(model_id)
    node = registry.tree.rename(record, checkpoint_id, name.strip())
    return see(f"/models/{record.slug}?checkpoint={node.id}")


@router.action("/models/{model_id}/head", "train")
async def set_head(
    launching: LaunchingPart,
    engine: EnginePart,
    audit: Audit,
    model_id: str,
    checkpoint: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    """Make a checkpoint the head, by promotion or roll back. A promotion records the gate's decision with the checkpoint."""

    def look() -> tuple[ModelRecord, str | None, dict[str, Any] | None]:
        registry = launching.registry
        record = registry.model(model_id)
        launching.refuse_trained(record)
        target = registry.tree.find(record, checkpoint)
        return record, target, _promotion(registry, record, target)

    record, target, promotion = await asyncio.to_thread(look)
    action: Action = "head moved"
    decision = None
    if promotion is not None:
        decision = HeadDecision(
            compared_with=record.head_checkpoint_id, metrics={PROMOTION: promotion}
        )
        action = "head forced" if promotion["forced"] else "head promoted"
    await engine.call(record, MoveHead(checkpoint=target, decision=decision))
    moved = {"model_id": record.id, "before": record.head_checkpoint_id, "after": target}
    await asyncio.to_thread(audit.note, action, record.slug, **moved)
    return see(f"/models/{record.slug}")


def _promotion(registry: Registry, model: ModelRecord, target: str | None) -> dict[str, Any] | None:
    """Return the record of a promotion; None for a roll back, and without recorded runs to compare."""
    head = model.head_checkpoint_id
    if target is None or target == head or is_behind(registry.tree.links(model), target, head):
        return None
    judgement = judge_recorded(registry, model, target)
    if judgement.verdict == "unknown":
        return None
    node = registry.tree.get(target)
    return record_of(registry, judgement, Evidence(), model, node, forced=not judgement.promoted)


def model_shown(model: ModelRecord, slugs: Mapping[str, str]) -> dict[str, Any]:
    """Return a model as plain data."""
    config = model.config
    trained = f"LoRA {config.lora_rank}" if config.training == "lora" else "full fine-tuning"
    return {
        "id": model.id,
        "slug": model.slug,
        "name": model.name,
        "kind": model.kind,
        "trainable": config.provider is None,
        "trained": None if config.provider is not None else trained,
        "head": model.head_checkpoint_id,
        "base": slugs.get(model.base_model_id or ""),
        "source": config.source,
        "created_at": model.created_at.isoformat(),
    }


def cache_of(model: ModelRecord, loaded: Sequence[Mapping[str, Any]]) -> str:
    """Return the size of a model's key-value cache as words; while it is not loaded, the settings of it."""
    caches = [policy["cache"] for policy in loaded if policy["model_id"] == model.id]
    if caches and caches[0] is not None:
        return str(CacheFacts(**caches[0]))
    if model.config.servers is not None:
        return f"on its {model.config.servers.kind} servers"
    config = model.config
    limits = [
        None if config.cache_bytes is None else f"{config.cache_bytes / 2**30:,.2f} GiB",
        None if config.slots is None else f"{config.slots} sequences at a time",
        None if config.max_context is None else f"{config.max_context:,} tokens each at most",
    ]
    return ", ".join(filter(None, limits)) or "by free memory, once it is loaded"


def node_shown(node: CheckpointRecord, scores: Mapping[str | None, Any]) -> dict[str, Any]:
    """Return a checkpoint as plain data, with its held-out score if it has one."""
    return {
        "id": node.id,
        "name": node.name,
        "step": node.step,
        "training_step": node.training_step,
        "parent": node.parent_id,
        "reward": node.mean_reward,
        "trained_reward": node.trained_reward,
        "loss": loss_per_token(node.metrics),
        "loss_fn": node.loss_fn,
        "learning_rate": node.learning_rate,
        "runs": node.num_traces,
        "tokens": node.num_tokens,
        "entropy": node.metrics.get("entropy:mean"),
        "kl": node.metrics.get("sampler_k3:mean"),
        "created_at": node.created_at.isoformat(),
        "pruned": node.folder is None,
        "named": is_named(node),
        "promotion": node.metrics.get(PROMOTION),
        "prompt": node.system_prompt,
        "score": scores.get(node.id),
    }


def scores_of(runs: list[dict[str, Any]]) -> dict[str | None, dict[str, Any]]:
    """Return the newest held-out score of each checkpoint (None: the base); `runs` are sorted newest first."""
    latest: dict[str | None, dict[str, Any]] = {}
    for run in runs:
        for score in reversed(run["state"].get("scores") or []):
            latest.setdefault(score.get("checkpoint_id"), score)
    return latest


def lineage_of(nodes: Sequence[CheckpointLink], head: str | None) -> Data:
    """Return the head and its nearest ancestors, newest first, and how many more there are before the base."""
    links = {node.id: node for node in nodes}
    line: list[CheckpointLink] = []
    place = links.get(head or "")
    while place is not None:
        line.append(place)
        place = links.get(place.parent_id or "")
    shown = [{"id": node.id, "name": node.name} for node in line[:LINEAGE]]
    return {"nodes": shown, "earlier": len(line) - len(shown)}


def is_behind(nodes: Sequence[CheckpointLink], target: str | None, head: str | None) -> bool:
    """Return True if `target` is an ancestor of `head`: moving the head there is a roll back."""
    parents = {node.id: node.parent_id for node in nodes}
    place = head
    while place is not None and place in parents:
        place = parents[place]
        if place == target:
            return True
    return target is None and head is not None


def _selected(
    registry: Registry,
    model: ModelRecord,
    nodes: Sequence[CheckpointLink],
    selected: str | None,
    scores: Mapping[str | None, Any],
) -> dict[str, Any]:
    """Return the details of one checkpoint, and the gate's verdict on making it the head."""
    is_own = any(node.id == selected for node in nodes)
    node = registry.tree.get(selected) if selected is not None and is_own else None
    head = model.head_checkpoint_id
    is_head = selected == head
    verdict = None
    if not is_head:
        judgement = judge_recorded(registry, model, selected)
        verdict = {
            "name": judgement.verdict,
            "sentence": judgement.sentence,
            "comparison": judgement.comparison,
        }
    return {
        "id": selected,
        "reference": selected or "base",
        "node": None if node is None else node_shown(node, scores),
        "score": scores.get(selected),
        "is_head": is_head,
        "behind": not is_head and is_behind(nodes, selected, head),
        "verdict": verdict,
    }
