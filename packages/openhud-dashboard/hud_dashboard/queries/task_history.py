"""History of the tasks of a taskset that is not the platform's: their rewards by model and checkpoint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from hud.errors import NotFoundError
from hud_platform.store import Store, tables
from hud_platform.store.job_titles import environments_of
from hud_platform.store.played_environments import MOST_JOBS
from hud_platform.store.records import registered_models
from hud_platform.store.task_labels import task_labels

MOST_POLICIES = 8
"""Policies that are shown, those with the newest runs."""
MOST_TASKS = 500
Policy = tuple[str, str | None]
"""Model, and the id of its checkpoint; None: the base weights, or no model of the platform."""


def task_history(store: Store, team: str, name: str, environment: str) -> dict[str, Any]:
    """Return `policies` (the one that played last first) and `items`: a task with its `label`, and for each policy `mean`, `runs` and
    `trace_id`, its newest run; None where it was not played. A policy is a `model` with its `checkpoint` (an id) and `name`, the
    checkpoint's, which is None for agents that are no models of the platform.

    Raises `NotFoundError` for a taskset without a job.
    """
    jobs, runs = tables.jobs, tables.runs
    newest = sa.select(jobs.c.id, jobs.c.extra).where(
        jobs.c.team_id == team, jobs.c.taskset_id.is_(None), jobs.c.purpose != "training"
    )
    rows = store.rows(newest.order_by(jobs.c.created_at.desc()).limit(MOST_JOBS))
    named = [row.id for row in rows if row.extra.get("taskset") == name]
    with store.read() as connection:
        environments = environments_of(connection, named)
    ids = [job for job in named if environments.get(job) == environment]
    if not ids:
        raise NotFoundError(f"No job has played the taskset {name!r} of {environment!r}.")
    columns = ("slug", "model", "checkpoint", "turns", "job_id", "reward", "trace_id")
    query = sa.select(*(runs.c[name] for name in columns)).where(
        runs.c.job_id.in_(ids), runs.c.team_id == team, runs.c.slug.is_not(None)
    )
    played = store.rows(query.order_by(runs.c.started_at.desc(), runs.c.trace_id))
    # The checkpoint of a run is known at its first turn: one that failed before is of the policy of its job.
    of_job = {(row.job_id, row.model): row.checkpoint for row in played if row.turns}
    rewards: defaultdict[tuple[str, Policy], list[float]] = defaultdict(list)
    latest: dict[tuple[str, Policy], str] = {}
    policies: dict[Policy, None] = {}
    slugs: dict[str, str] = {}
    for row in played:
        checkpoint = row.checkpoint if row.turns else of_job.get((row.job_id, row.model))
        policy = (row.model or "–", checkpoint)
        policies.setdefault(policy)
        slugs.setdefault(row.slug, row.trace_id)
        latest.setdefault((row.slug, policy), row.trace_id)
        if row.reward is not None:
            rewards[row.slug, policy].append(row.reward)
    labels = task_labels(store, team, dict(list(slugs.items())[:MOST_TASKS]))
    shown = list(policies)[:MOST_POLICIES]
    items = [
        {
            "slug": slug,
            "label": labels[slug],
            "by_policy": [
                _cell(rewards[slug, policy], latest.get((slug, policy))) for policy in shown
            ],
        }
        for slug in sorted(labels)
    ]
    return {
        "policies": _shown(store, team, shown),
        "all_policies": len(policies),
        "items": items,
        "jobs": len(ids),
        "tasks": len(slugs),
    }


def _shown(store: Store, team: str, policies: Sequence[Policy]) -> list[dict[str, Any]]:
    """Return policies as plain data, with the names of their checkpoints."""
    nodes = tables.checkpoints
    ids = [checkpoint for _, checkpoint in policies if checkpoint is not None]
    names = {
        row.id: row.name
        for row in store.rows(sa.select(nodes.c.id, nodes.c.name).where(nodes.c.id.in_(ids)))
    }
    registered = registered_models(store, team, {model for model, _ in policies})
    return [
        {
            "model": model,
            "checkpoint": checkpoint,
            "name": names.get(checkpoint, checkpoint[:8])
            if checkpoint is not None
            else "base"
            if model in registered
            else None,
        }
        for model, checkpoint in policies
    ]


def _cell(rewards: list[float], trace_id: str | None) -> dict[str, Any] | None:
    if trace_id is None:
        return None
    mean = sum(rewards) / len(rewards) if rewards else None
    return {"mean": mean, "runs": len(rewards), "trace_id": trace_id}
