"""Jobs of human baselines: one for each person and version of a taskset, with a run for each task played."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud.agents.human import HUMAN, HUMAN_SECONDS
from hud.processes.presence import process_started
from hud.trace import new_id, plain
from hud_platform.store import Store, tables
from hud_platform.store.ingest import upsert
from hud_platform.store.ownership import BASELINE
from hud_platform.store.queries import as_dict

_NAMES = uuid.UUID("6c1f3a52-0f0e-4a63-9a52-1d6f5a7e9b10")


def group_of(job_id: str, slug: str) -> str:
    """Return the id of the group of a person's runs of one task."""
    return uuid.uuid5(_NAMES, f"{job_id}/{slug}").hex


def open_job(store: Store, team: str, user: str, taskset: dict[str, Any]) -> str:
    """Mark a person's job for the current version of a taskset as running in this process; returns its id.

    A new job gets a random id. A job whose id follows from names could be made by another client first, as an ordinary one.
    """
    jobs = tables.jobs
    here = {
        "status": "running",
        "pid": os.getpid(),
        "process_started": process_started(os.getpid()),
        "host": socket.gethostname(),
        "ended_at": None,
    }
    new = {
        "team_id": team,
        "name": f"Human baseline: {taskset['name']}",
        "taskset_id": plain(taskset["id"]),
        "group_size": 1,
        "extra": {"baseline": BASELINE, "user_id": user, "taskset_version": taskset["version"]},
        "created_at": datetime.now(UTC),
    }
    with store.begin() as connection:
        identifier = connection.execute(_job_of(team, user, taskset)).scalar()
        if identifier is None:
            identifier = new_id()
            connection.execute(sa.insert(jobs).values(id=identifier, **new, **here))
        else:
            connection.execute(sa.update(jobs).where(jobs.c.id == identifier).values(**here))
        noted = {"job_id": identifier, "model": HUMAN, "checkpoint": "", "team_id": team}
        upsert(connection, tables.job_models, [noted])
    return str(identifier)


def _job_of(team: str, user: str, taskset: Mapping[str, Any]) -> sa.Select[Any]:
    """Return the query for the id of a person's newest job for the current version of a taskset."""
    jobs = tables.jobs
    return (
        sa.select(jobs.c.id)
        .where(
            jobs.c.team_id == team,
            jobs.c.taskset_id == plain(taskset["id"]),
            jobs.c.extra["baseline"].as_string() == BASELINE,
            jobs.c.extra["user_id"].as_string() == user,
            jobs.c.extra["taskset_version"].as_integer() == taskset["version"],
        )
        .order_by(jobs.c.created_at.desc())
        .limit(1)
    )


def close_job(store: Store, job_id: str) -> None:
    """Mark a job as completed: no session plays in it now."""
    jobs = tables.jobs
    ended = {"status": "completed", "ended_at": datetime.now(UTC)}
    store.write(sa.update(jobs).where(jobs.c.id == job_id).values(**ended))


def next_attempt(store: Store, job_id: str, slug: str) -> int:
    """Return the number of runs of a task in a job, which is the index of the next attempt."""
    runs = tables.runs
    query = sa.select(sa.func.count()).where(
        runs.c.job_id == job_id, runs.c.group_id == group_of(job_id, slug)
    )
    return int(store.value(query))


def scores(store: Store, team: str, taskset_id: str) -> dict[str, list[dict[str, Any]]]:
    """Return people's runs on any version of a taskset, by task, newest first.
    `seconds` is the time from the display of the task to the answer.
    """
    runs, jobs = tables.runs, tables.jobs
    of_people = sa.select(jobs.c.id).where(
        jobs.c.team_id == team,
        jobs.c.taskset_id == plain(taskset_id),
        jobs.c.extra["baseline"].as_string() == BASELINE,
    )
    query = (
        sa.select(runs)
        .where(runs.c.team_id == team, runs.c.job_id.in_(of_people))
        .order_by(runs.c.started_at.desc())
    )
    scores_by_task: dict[str, list[dict[str, Any]]] = {}
    for row in store.rows(query):
        scores_by_task.setdefault(row.slug, []).append(_score(as_dict(row)))
    return scores_by_task


def _score(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a person's run."""
    extra = exact_json.loads(run["extra"]) if run["extra"] is not None else {}
    names = ("trace_id", "job_id", "status", "reward", "error")
    return {
        **{name: run[name] for name in names},
        "seconds": extra.get(HUMAN_SECONDS),
        "user_id": extra.get("user_id"),
        "started_at": None if run["started_at"] is None else run["started_at"].isoformat(),
    }
