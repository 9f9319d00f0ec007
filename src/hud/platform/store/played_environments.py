"""Environments of recorded jobs, each by the task of one of the job's runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud.platform.store import Store, tables
from hud.platform.store.queries import in_parts

MOST_JOBS = 300
"""Number of the newest jobs that are read for the list of environments."""


def environments_of(store: Store, job_ids: Sequence[str]) -> dict[str, str]:
    """Return the environment of each job that has a run of a task, by the job's id."""
    jobs, runs = tables.jobs, tables.runs
    task = sa.select(runs.c.task).where(runs.c.job_id == jobs.c.id).limit(1).scalar_subquery()
    environments: dict[str, str] = {}
    for ids in in_parts(job_ids):
        for job_id, row in store.rows(sa.select(jobs.c.id, task).where(jobs.c.id.in_(ids))):
            loaded = None if row is None else exact_json.loads(row)
            if isinstance(loaded, dict) and isinstance(loaded.get("env"), str):
                environments[job_id] = loaded["env"]
    return environments


def job_title(name: str, environment: str | None) -> str:
    """Return a job's display name: its environment, and its name, which says its purpose, such as `m training`."""
    if environment is None or name.startswith(environment):
        return name
    return f"{environment} · {name}"


def played_environments(store: Store, team: str) -> list[dict[str, Any]]:
    """Return the environments of the team's newest jobs: `name`, `jobs` and the newest job; last played first."""
    jobs = tables.jobs
    newest = sa.select(jobs.c.id, jobs.c.name, jobs.c.created_at).where(jobs.c.team_id == team)
    rows = store.rows(newest.order_by(jobs.c.created_at.desc()).limit(MOST_JOBS))
    environments = environments_of(store, [row.id for row in rows])
    played: dict[str, dict[str, Any]] = {}
    for row in rows:
        if (name := environments.get(row.id)) is not None:
            first = {
                "name": name,
                "jobs": 0,
                "job_id": row.id,
                "job": row.name,
                "played_at": row.created_at.isoformat(),
            }
            played.setdefault(name, first)["jobs"] += 1
    return list(played.values())
