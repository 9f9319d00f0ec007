"""Promotion: a checkpoint becomes the head if the gate accepts the evidence of recorded runs.

The candidate is a checkpoint of the model or of a fork of it; a fork's checkpoint is added to the model's tree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hud.errors import ConflictError, UsageError
from hud.eval.results.paired_differences import Rewards, rewards_by_attempt
from hud.eval.results.promotion_gate import Decision, Gate, decide
from hud_platform.models.lineage import lineage_of
from hud_platform.models.records import BASE, PROMOTION, CheckpointRecord, ModelRecord
from hud_platform.store import records, tables
from hud_platform.store.checkpoint_rewards import ended_runs
from hud_platform.store.job_runs import job_runs, summary
from hud_platform.store.job_status import has_ended
from hud_platform.store.outcomes import job_rules
from hud_platform.store.served_runs import is_served
from hud_platform.store.task_labels import task_labels
from hud_platform.store.trained_prompts import prompts_trained_on
from hud_platform.store.trained_tasks import trained_on

if TYPE_CHECKING:
    from hud_platform.models.registry import Registry

_Played = tuple[str, str | None]
"""Model slug and checkpoint of the weights that played a job; None: the base weights."""


@dataclass(frozen=True)
class Evidence:
    """Evidence for a decision: jobs, and the conditions of the gate."""

    jobs: tuple[str, ...] = ()
    """Jobs of the head and of the candidate: the same tasks on the same seeds. Empty: all recorded runs of both."""
    gate: Gate = field(default_factory=Gate)
    subsets: Mapping[str, Sequence[str]] = field(default_factory=dict)


def judge(
    registry: Registry,
    model: ModelRecord,
    source: ModelRecord,
    node: CheckpointRecord,
    evidence: Evidence,
) -> Decision:
    """Decide whether to promote `node` of `source`. Raises `ConflictError` for the head, and for jobs of other weights."""
    head = model.head_checkpoint_id
    if node.id == head or _promoted_from(registry, head) == (source.slug, node.id):
        raise ConflictError(f"Checkpoint {node.name!r} is the head of {model.slug!r} already.")
    of_head: set[_Played] = {(model.slug, head)}
    if source.config.origin_checkpoint == head:
        of_head.add((source.slug, head))
    if (before := _promoted_from(registry, head)) is not None:
        of_head.add(before)
    first = _rewards(registry, model, evidence.jobs[0], of_head, "the head")
    second = _rewards(registry, model, evidence.jobs[1], {(source.slug, node.id)}, node.name)
    _refuse_other_rules(registry, model, evidence.jobs)
    _refuse_trained(registry, model, source, node, evidence.jobs, {*first, *second})
    return decide(first, second, evidence.gate, evidence.subsets)


def judge_recorded(
    registry: Registry,
    model: ModelRecord,
    checkpoint: str | None,
    slugs: Collection[str] | None = None,
) -> Decision:
    """Decide about a checkpoint of `model` (None: its base) from the recorded held-out runs of it and of the head.

    `slugs`: only these tasks. Tasks that only one of them ever played, and trained tasks, are ignored.
    """
    store, team = registry.store, model.team_id
    sides = [
        list(ended_runs(store, team, model.slug, side, slugs, is_played=is_served()))
        for side in (model.head_checkpoint_id, checkpoint)
    ]
    # All runs show the task's arguments: a slug may name several tasks.
    trace_ids = [run[1] for side in sides for run in side]
    trained = _trained(registry, model, model, checkpoint, trace_ids)
    of_head, of_candidate = ({slug for slug, _, _ in side} for side in sides)
    held_out = (of_head & of_candidate) - trained
    head, candidate = (_by_task(side, held_out) for side in sides)
    return decide(head, candidate)


def _by_task(
    runs: Iterable[tuple[str, str, float | None]], slugs: Collection[str]
) -> dict[str, list[float | None]]:
    """Return the rewards of the runs of these tasks, by slug; None for unmeasured runs."""
    rewards: dict[str, list[float | None]] = {}
    for slug, _, reward in runs:
        if slug in slugs:
            rewards.setdefault(slug, []).append(reward)
    return rewards


def record_of(
    registry: Registry,
    decision: Decision,
    evidence: Evidence,
    source: ModelRecord,
    node: CheckpointRecord,
    forced: bool,
) -> dict[str, Any]:
    """Return the promotion record of a checkpoint: the decision, its evidence, and whether it was forced."""
    return {
        **decision.as_dict(),
        "forced": forced,
        "gate": asdict(evidence.gate),
        "jobs": list(evidence.jobs),
        "from": {
            "model": source.slug,
            "checkpoint": node.id,
            # Models that are deleted have trained, too.
            "lineage": lineage_of(registry, source),
        },
    }


def goes_round_the_gate(registry: Registry, model: ModelRecord, checkpoint: str | None) -> bool:
    """True if moving the head to this checkpoint bypasses the gate: the model is gated and no decision accepted it."""
    nodes = registry.tree.nodes(model)
    passed = {node.id for node in nodes if node.metrics.get(PROMOTION, {}).get("promoted")}
    gated = any(PROMOTION in node.metrics for node in nodes) or any(
        other.base_model_id == model.id and other.config.candidate for other in registry.models()
    )
    return gated and checkpoint not in passed


def find_candidate(
    registry: Registry, model: ModelRecord, source: ModelRecord, reference: str
) -> CheckpointRecord:
    """Return the checkpoint of `source` that may become the head of `model`. Raises `UsageError` for any other."""
    if source.id != model.id:
        same = ("training", "lora_rank", "lora_alpha", "lora_targets", "lora_tower")
        alike = all(
            getattr(source.config, setting) == getattr(model.config, setting) for setting in same
        )
        if source.folder != model.folder or not alike:
            raise UsageError(
                f"{source.slug!r} is not a fork of {model.slug!r} with the same kind of weights."
            )
    node_id = registry.tree.find(source, reference)
    if node_id is None:
        raise UsageError(
            f"{BASE!r} is not a checkpoint; without a gate: hud models head {model.slug} --set {BASE}"
        )
    return registry.tree.get(node_id)


def _promoted_from(registry: Registry, checkpoint: str | None) -> _Played | None:
    """Return the weights of which a checkpoint is a copy; None if it is not a copy."""
    if checkpoint is None:
        return None
    record = registry.tree.get(checkpoint).metrics.get(PROMOTION)
    return None if record is None else (record["from"]["model"], record["from"]["checkpoint"])


def _rewards(
    registry: Registry, model: ModelRecord, job: str, played: set[_Played], who: str
) -> Rewards:
    """Return the rewards of a job's runs, None for those in which no model played.

    Raises `ConflictError` if other weights than these played it, or none, and for rollouts of training.
    """
    store, team = registry.store, model.team_id
    record = records.find_job(store, team, job)
    if record["purpose"] == "training":
        raise ConflictError(
            f"Job {job!r} holds rollouts of training; evidence is of held-out tasks: hud models promote {model.slug} ..."
        )
    runs = job_runs(store, team, record)
    served = set(
        store.values(
            sa.select(tables.runs.c.trace_id).where(
                tables.runs.c.job_id == record["id"], tables.runs.c.team_id == team, is_served()
            )
        )
    )
    measured = [run for run in runs if run["reward"] is not None]
    if not measured:
        raise UsageError(f"Job {job!r} has no measured run; hud jobs {job} shows why.")
    weights = {(run["model"], run["checkpoint"]) for run in measured if run["trace_id"] in served}
    if not weights:
        raise ConflictError(
            f"This platform sampled no turn of job {job!r}; play the tasks with {who}, through its gateway."
        )
    others = weights - played
    if others:
        slug, checkpoint = min(others, key=str)
        raise ConflictError(
            f"Job {job!r} was played by {slug} at {checkpoint or BASE}, not by {who} of {model.slug!r}; play the tasks "
            "again with both."
        )
    return rewards_by_attempt(
        replace(summary(run), reward=run["reward"] if run["trace_id"] in served else None)
        for run in runs
        if has_ended(run["status"], record["status"] != "running")
    )


def _refuse_other_rules(registry: Registry, model: ModelRecord, jobs: Sequence[str]) -> None:
    """Raise `ConflictError` if the rewards of the jobs follow different rules."""
    store, team = registry.store, model.team_id
    ids = [records.find_job(store, team, job)["id"] for job in jobs]
    first, *others = job_rules(store, team, ids)
    if any(rule != first for rule in others):
        raise ConflictError(
            f"The jobs have different rules of rewards, so that their rewards are not compared: hud reward-rule --job {ids[1]}"
        )


def _refuse_trained(
    registry: Registry,
    model: ModelRecord,
    source: ModelRecord,
    node: CheckpointRecord,
    jobs: Sequence[str],
    slugs: Collection[str],
) -> None:
    """Raise `ConflictError` if training runs of these models, or of models they are forks of, played tasks of the jobs."""
    runs, team = tables.runs, model.team_id
    of_jobs = sa.select(runs.c.trace_id, runs.c.slug).where(
        runs.c.team_id == team, runs.c.job_id.in_(jobs)
    )
    played = {row.trace_id: row.slug for row in registry.store.rows(of_jobs)}
    trained = sorted(_trained(registry, model, source, node.id, list(played)))
    if trained:
        of_task = {slug: trace for trace, slug in played.items() if slug in trained[:1]}
        example = task_labels(registry.store, team, of_task).get(trained[0], trained[0])
        raise ConflictError(
            f"{len(trained)} of the {len(slugs)} tasks are trained on, such as {example}: rewards there are no evidence. "
            "Play held-out tasks with both."
        )


def _trained(
    registry: Registry,
    model: ModelRecord,
    source: ModelRecord,
    candidate: str | None,
    trace_ids: Collection[str],
) -> set[str]:
    """Return the slugs of runs whose tasks were trained on by the models from which the weights of these come, or are in the
    candidate's system prompt.
    """
    store, team, lineage = registry.store, model.team_id, lineage_of(registry, source, model)
    by_task = trained_on(store, team, lineage.values(), trace_ids, model_ids=lineage.keys())
    system_prompt = registry.tree.system_prompt(candidate)
    return by_task | prompts_trained_on(store, team, lineage.keys(), trace_ids, system_prompt)
