"""Environments of recorded jobs, each by the task of one of the job's runs."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from hud_platform.store import Store, tables
from hud_platform.store.job_titles import environments_of, job_title

MOST_JOBS = 300
"""Number of the newest jobs that are read for the list of environments."""


def played_environments(store: Store, team: str) -> list[dict[str, Any]]:
    """Return the environments of the team's newest jobs: `name`, `jobs` and the newest job; last played first."""
    jobs = tables.jobs
    newest = sa.select(jobs.c.id, jobs.c.name, jobs.c.created_at).where(jobs.c.team_id == team)
    rows = store.rows(newest.order_by(jobs.c.created_at.desc()).limit(MOST_JOBS))
    with store.read() as connection:
        environments = environments_of(connection, [row.id for row in rows])
    played: dict[str, dict[str, Any]] = {}
    for row in rows:
        if (name := environments.get(row.id)) is not None:
            first = {"name": name, "jobs": 0, **newest_job(row, name)}
            played.setdefault(name, first)["jobs"] += 1
    return list(played.values())


def newest_job(row: sa.Row[Any], environment: str) -> dict[str, Any]:
    """Return a job of an environment as the newest one that a list shows: `job_id`, `job` (its title) and `played_at`."""
    return {
        "job_id": row.id,
        "job": job_title(row.name, environment),
        "played_at": row.created_at.isoformat(),
    }
