"""History of the tasks of a taskset that is not the platform's: their rewards by model."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import sqlalchemy as sa

from hud.errors import NotFoundError
from hud_platform.store import Store, tables
from hud_platform.store.job_titles import environments_of
from hud_platform.store.played_environments import MOST_JOBS
from hud_platform.store.task_labels import task_labels

MOST_MODELS = 8
"""Models that are shown, those with the newest runs."""
MOST_TASKS = 500


def task_history(store: Store, team: str, name: str, environment: str) -> dict[str, Any]:
    """Return `models` (the one that played last first) and `items`: a task with its `label`, and for each model `mean`, `runs` and `trace_id`,
    its newest run; None where it was not played.

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
    query = sa.select(runs.c.slug, runs.c.model, runs.c.reward, runs.c.trace_id).where(
        runs.c.job_id.in_(ids), runs.c.team_id == team, runs.c.slug.is_not(None)
    )
    rewards: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    latest: dict[tuple[str, str], str] = {}
    models: dict[str, None] = {}
    slugs: dict[str, str] = {}
    for row in store.rows(query.order_by(runs.c.started_at.desc(), runs.c.trace_id)):
        key = (row.slug, row.model or "–")
        models.setdefault(key[1])
        slugs.setdefault(row.slug, row.trace_id)
        latest.setdefault(key, row.trace_id)
        if row.reward is not None:
            rewards[key].append(row.reward)
    labels = task_labels(store, team, dict(list(slugs.items())[:MOST_TASKS]))
    shown = list(models)[:MOST_MODELS]
    items = [
        {
            "slug": slug,
            "label": labels[slug],
            "by_model": [_cell(rewards[slug, model], latest.get((slug, model))) for model in shown],
        }
        for slug in sorted(labels)
    ]
    return {"models": shown, "items": items, "jobs": len(ids), "tasks": len(slugs)}


def _cell(rewards: list[float], trace_id: str | None) -> dict[str, Any] | None:
    if trace_id is None:
        return None
    mean = sum(rewards) / len(rewards) if rewards else None
    return {"mean": mean, "runs": len(rewards), "trace_id": trace_id}
