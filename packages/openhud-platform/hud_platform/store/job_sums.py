"""Sums over the runs of jobs: rewards with their interval, tokens, cost. Computed from one index, without the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from hud.eval.results.intervals import TaskRewards, interval_of_sums
from hud_platform.store import tables
from hud_platform.store.queries import in_parts
from hud_platform.store.tables import Moment

_ROUNDING = 1e-12


@dataclass
class JobSums:
    """Sums over the runs of one job."""

    runs: int = 0
    running: int = 0
    graded: int = 0
    failed: int = 0
    reward: float | None = None
    low: float | None = None
    """Lower end of the 95% interval of the mean reward, over tasks; None for fewer than two tasks."""
    high: float | None = None
    spread: float | None = None
    """Reward standard deviation: mean over the groups of two or more runs."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    """Number of failed tool calls, without those that reached their time-out."""
    tool_time_outs: int = 0
    cost_usd: float | None = None
    last_end: datetime | None = None
    """Latest end of a run."""

    def shown(self) -> dict[str, Any]:
        """The sums as plain data."""
        return {name: value for name, value in vars(self).items() if name != "last_end"}

    def progress(self, status: str, planned: int | None) -> dict[str, int]:
        """Return the numbers of runs that are `running`, `over` and `planned` (at least those on record).

        `status`: that of the job. In one that is over, runs that are recorded as running were interrupted.
        """
        running = self.running if status == "running" else 0
        return {
            "running": running,
            "over": self.runs - running,
            "planned": max(planned or 0, self.runs),
        }


def sums_of(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, JobSums]:
    """Return the sums of each of these jobs."""
    by_job = {job_id: JobSums() for job_id in job_ids}
    for some in in_parts(job_ids):
        groups: dict[str, list[Any]] = {}
        for row in connection.execute(_groups(some)).all():
            groups.setdefault(row[0], []).append(row)
        by_job |= {job_id: _summed(rows) for job_id, rows in groups.items()}
        for job_id, tasks in _task_sums(connection, some).items():
            interval = interval_of_sums(tasks)
            if interval is not None:
                by_job[job_id].low, by_job[job_id].high = interval.low, interval.high
    return by_job


def spreads_of(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, float]:
    """Return `JobSums.spread` of those of these jobs that have one."""
    runs = tables.runs
    query = (
        sa.select(
            runs.c.job_id,
            sa.func.sum(runs.c.reward),
            sa.func.count(runs.c.reward),
            sa.func.sum(runs.c.reward * runs.c.reward),
        )
        .where(runs.c.job_id.in_(job_ids))
        .group_by(runs.c.job_id, runs.c.group_id)
        .having(sa.func.count(runs.c.reward) > 1)
    )
    deviations: dict[str, list[float]] = {}
    for job_id, *part in connection.execute(query):
        deviations.setdefault(job_id, []).append(_deviation(*part))
    return {job_id: sum(spreads) / len(spreads) for job_id, spreads in deviations.items()}


def _groups(job_ids: Sequence[str]) -> sa.Select[Any]:
    """Return the query for one row a group: the interval and the standard deviation are over groups."""
    runs = tables.runs
    return (
        sa.select(
            runs.c.job_id,
            sa.func.count().label("runs"),
            sa.func.count(sa.case((runs.c.status == "running", 1))).label("running"),
            sa.func.count(runs.c.reward).label("graded"),
            sa.func.sum(runs.c.reward).label("total"),
            sa.func.sum(runs.c.reward * runs.c.reward).label("squares"),
            sa.func.count(runs.c.failure_kind).label("failed"),
            sa.func.sum(runs.c.prompt_tokens).label("prompt_tokens"),
            sa.func.sum(runs.c.completion_tokens).label("completion_tokens"),
            sa.func.sum(runs.c.tool_calls).label("tool_calls"),
            sa.func.sum(runs.c.tool_errors).label("tool_errors"),
            sa.func.sum(runs.c.tool_time_outs).label("tool_time_outs"),
            sa.func.sum(runs.c.cost_usd).label("cost_usd"),
            sa.func.max(runs.c.ended_at, type_=Moment).label("last_end"),
        )
        .where(runs.c.job_id.in_(job_ids))
        # A run without a group is a group of its own.
        .group_by(runs.c.job_id, runs.c.group_id)
    )


def _task_sums(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, list[TaskRewards]]:
    """Return the sums of the rewards of each task, for the interval."""
    runs = tables.runs
    query = (
        sa.select(
            runs.c.job_id,
            sa.func.sum(runs.c.reward),
            sa.func.count(runs.c.reward),
            sa.func.sum(runs.c.reward * runs.c.reward),
            sa.func.min(runs.c.reward),
            sa.func.max(runs.c.reward),
        )
        .where(runs.c.job_id.in_(job_ids), runs.c.reward.is_not(None))
        .group_by(runs.c.job_id, runs.c.slug)
    )
    by_job: dict[str, list[TaskRewards]] = {}
    for job_id, *sums in connection.execute(query):
        by_job.setdefault(job_id, []).append(TaskRewards(*sums))
    return by_job


def _summed(groups: Sequence[Any]) -> JobSums:
    columns = list(zip(*groups, strict=True))  # By column for speed: a page has a thousand groups.
    _, runs, running, graded, totals, squares, failed, *tokens_and_calls, costs, ends = columns
    prompts, completions, calls, errors, late = tokens_and_calls
    recorded = [cost for cost in costs if cost is not None]
    sums = JobSums(
        runs=sum(runs),
        running=sum(running),
        graded=sum(graded),
        failed=sum(failed),
        prompt_tokens=sum(prompts),
        completion_tokens=sum(completions),
        tool_calls=sum(calls),
        tool_errors=sum(errors),
        tool_time_outs=sum(late),
        cost_usd=sum(recorded) if recorded else None,
        last_end=max((end for end in ends if end is not None), default=None),
    )
    measured = [part for part in zip(totals, graded, squares, strict=True) if part[1]]
    if measured:
        sums.reward = sum(total for total, _, _ in measured) / sums.graded
        spreads = [_deviation(*part) for part in measured if part[1] > 1]
        sums.spread = sum(spreads) / len(spreads) if spreads else None
    return sums


def _deviation(total: float, size: int, squares: float) -> float:
    mean = total / size
    variance = squares / size - mean * mean
    # The rounding error of equal rewards counts as 0: the square root would amplify it.
    return math.sqrt(variance) if variance > _ROUNDING else 0.0
