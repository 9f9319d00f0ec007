"""Titles of jobs, as pages and commands show them: the environment, and the job's own name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from hud import exact_json
from hud_platform.store import tables
from hud_platform.store.queries import in_parts


def titles_of(connection: sa.Connection, names: Mapping[str, str]) -> dict[str, str]:
    """Return the title of each job, by its id. `names`: their recorded names, by id."""
    environments = environments_of(connection, list(names))
    return {job: job_title(name, environments.get(job)) for job, name in names.items()}


def job_title(name: str, environment: str | None) -> str:
    """Return the title of a job, such as `tickets · my-policy training`."""
    if environment is None or name.startswith(environment):
        return name
    return f"{environment} · {name}"


def environments_of(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, str]:
    """Return the environment of each job that has a run of a task, by the job's id."""
    jobs, runs = tables.jobs, tables.runs
    task = sa.select(runs.c.task).where(runs.c.job_id == jobs.c.id).limit(1).scalar_subquery()
    environments: dict[str, str] = {}
    for ids in in_parts(job_ids):
        query = sa.select(jobs.c.id, task).where(jobs.c.id.in_(ids))
        for job_id, row in connection.execute(query):
            loaded = None if row is None else exact_json.loads(row)
            if isinstance(loaded, dict) and isinstance(loaded.get("env"), str):
                environments[job_id] = loaded["env"]
    return environments
