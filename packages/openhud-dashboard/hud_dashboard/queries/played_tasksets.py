"""Tasksets of recorded jobs whose tasks are of files, not of the platform."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from hud_platform.store import Store, tables
from hud_platform.store.job_titles import environments_of
from hud_platform.store.played_environments import MOST_JOBS, newest_job
from hud_platform.store.queries import in_parts


def played_tasksets(store: Store, team: str) -> list[dict[str, Any]]:
    """Return the tasksets of the team's newest jobs that are not the platform's, last played first.

    A taskset is a name and an environment: `name`, `environment`, `tasks` (distinct ones that were played), `jobs`, and the
    newest job: `job_id`, `job` (its title) and `played_at`.
    """
    jobs = tables.jobs
    newest = sa.select(jobs.c.id, jobs.c.name, jobs.c.extra, jobs.c.created_at)
    newest = newest.where(jobs.c.team_id == team, jobs.c.taskset_id.is_(None))
    rows = store.rows(newest.order_by(jobs.c.created_at.desc()).limit(MOST_JOBS))
    named = [row for row in rows if row.extra.get("taskset")]
    with store.read() as connection:
        environments = environments_of(connection, [row.id for row in named])
        slugs = _slugs_of(connection, list(environments))
    played: dict[tuple[str, str], dict[str, Any]] = {}
    tasks: dict[tuple[str, str], set[str]] = {}
    for row in named:
        if (environment := environments.get(row.id)) is not None:
            key = (row.extra["taskset"], environment)
            first = {
                "name": key[0],
                "environment": environment,
                "jobs": 0,
                **newest_job(row, environment),
            }
            played.setdefault(key, first)["jobs"] += 1
            tasks.setdefault(key, set()).update(slugs.get(row.id, ()))
    return [{**taskset, "tasks": len(tasks[key])} for key, taskset in played.items()]


def _slugs_of(connection: sa.Connection, job_ids: list[str]) -> dict[str, set[str]]:
    """Return the tasks that each job played, by their slugs."""
    runs = tables.runs
    slugs: dict[str, set[str]] = {}
    for ids in in_parts(job_ids):
        query = sa.select(runs.c.job_id, runs.c.slug).where(
            runs.c.job_id.in_(ids), runs.c.slug.is_not(None)
        )
        for job_id, slug in connection.execute(query.distinct()):
            slugs.setdefault(job_id, set()).add(slug)
    return slugs
