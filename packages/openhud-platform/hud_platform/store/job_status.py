"""Status of jobs. A job recorded as running may be over: its process, or its worker, may have died."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from hud.processes.presence import process_lives
from hud_platform.store import tables
from hud_platform.store.queries import in_parts

INTERRUPTED = {
    "status": "cancelled",
    "error": "Interrupted: its process ended before the run did.",
}
"""Columns of a run that is recorded as running in a job that is over."""


OPEN = ("queued", "running")
"""Statuses of runs without an end on record."""


def has_ended(status: str, job_is_over: bool) -> bool:
    """Return True for a run that counts, by its recorded status: one without an end counts once its job is over.

    It is then `INTERRUPTED`, without a reward.
    """
    return job_is_over or status not in OPEN


def statuses(connection: sa.Connection, jobs: Sequence[Any]) -> dict[str, str]:
    """Return the status of each of these rows of `jobs`: running, completed or interrupted."""
    running = [job for job in jobs if job.status == "running"]
    hosted = _counts(connection, tables.rollouts, [job.id for job in running])
    runs = _counts(connection, tables.runs, [job.id for job in running if job.pid is None])
    return {job.id: _status(job, hosted.get(job.id), runs.get(job.id)) for job in jobs}


def outcome(status: str, runs: int, failed: int) -> str:
    """Return `failed` instead of `completed` for a job whose runs all failed."""
    return "failed" if status == "completed" and 0 < runs == failed else status


def every_run_failed() -> sa.ColumnElement[bool]:
    """Return the condition on `jobs` that there are runs and all failed."""
    jobs, runs = tables.jobs, tables.runs
    of_job = sa.select(runs.c.job_id).where(runs.c.job_id == jobs.c.id)
    return sa.and_(
        sa.exists(of_job), sa.not_(sa.exists(of_job.where(runs.c.failure_kind.is_(None))))
    )


def _status(job: Any, hosted: tuple[int, int] | None, runs: tuple[int, int] | None) -> str:
    if job.status != "running":
        return str(job.status)
    if hosted is not None:
        # Played by the platform: the client that submitted it may have exited.
        return "running" if hosted[1] else "completed"
    if job.pid is None:
        # Reported over HTTP, which has no event for the end of a job.
        return "completed" if runs is not None and runs[1] == 0 else "running"
    here = job.host == socket.gethostname()
    if here and not process_lives(job.pid, job.process_started):
        return "interrupted"
    return "running"


def _counts(
    connection: sa.Connection, table: sa.Table, job_ids: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """Return the number of rows of each job, and of those the open ones."""
    running = table.c.status == "running" if table is tables.runs else table.c.ended_at.is_(None)
    counts: dict[str, tuple[int, int]] = {}
    for some in in_parts(job_ids):
        query = (
            sa.select(table.c.job_id, sa.func.count(), sa.func.count(sa.case((running, 1))))
            .where(table.c.job_id.in_(some))
            .group_by(table.c.job_id)
        )
        counts |= {row[0]: (row[1], row[2]) for row in connection.execute(query)}
    return counts
