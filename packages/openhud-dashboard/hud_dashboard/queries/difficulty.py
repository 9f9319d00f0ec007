"""Difficulty of a taskset's tasks for each model, from sums over jobs, without reading the runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from sys import intern
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from hud.trace.recorded_time import seconds_between
from hud_platform.store import Store, tables
from hud_platform.store.cached_sums import CachedSums, Revision
from hud_platform.store.queries import as_dict

SOLVED = 1.0
"""Minimum reward of a run that solved its task."""
MOST_SUMS = 200_000
"""Maximum number of cached sums of one store, about 40 MB."""
MOST_KNOWN = 50
"""Maximum number of tasksets with cached difficulties in one store."""
_LONGEST = 200
"""Maximum length of a task's or a model's name in the index, on PostgreSQL."""


@dataclass(frozen=True, slots=True)
class TaskSum:
    """Sums over the measured runs of one task by one model in one job."""

    slug: str
    model: str
    runs: int
    total: float
    """Sum of the rewards."""
    squares: float
    best: float


@dataclass
class Score:
    """Results of one model's measured runs of one task."""

    runs: int
    mean: float
    variance: float
    """Variance of the rewards of the runs."""
    best: float

    @property
    def solved(self) -> bool:
        """True if a run solved the task."""
        return self.best >= SOLVED


@dataclass
class Difficulty:
    """Difficulty of one task over all models."""

    runs: int = 0
    mean: float | None = None
    """Mean of the models' means: every model has the same weight."""
    spread: float | None = None
    """Mean over models of the standard deviation of rewards. 0: the task gives no training signal."""
    models: dict[str, Score] = field(default_factory=dict)

    @property
    def solved_by(self) -> list[str]:
        """Models that solved the task at least once."""
        return [model for model, score in self.models.items() if score.solved]

    def shown(self) -> dict[str, Any]:
        """Difficulty as plain data."""
        return {**asdict(self), "solved_by": self.solved_by}


def difficulties(store: Store, team: str, taskset_id: str) -> dict[str, Difficulty]:
    """Return the difficulty of a taskset's tasks that have runs, by name. The result is shared and must not be modified."""
    jobs = tables.jobs
    of_taskset = sa.select(jobs.c.id).where(jobs.c.team_id == team, jobs.c.taskset_id == taskset_id)
    revisions, sums = _SUMS.of_jobs(store, of_taskset)
    cached = _KNOWN.setdefault(store, {})
    before = cached.get((team, taskset_id))
    if before is not None and before[0] == revisions:
        return before[1]
    played: dict[str, dict[str, list[TaskSum]]] = {}
    for job in sums.values():
        for task_sum in job:
            played.setdefault(task_sum.slug, {}).setdefault(task_sum.model, []).append(task_sum)
    by_slug = {slug: _difficulty(played[slug]) for slug in sorted(played)}
    if len(cached) >= MOST_KNOWN:
        cached.clear()
    cached[team, taskset_id] = revisions, by_slug
    return by_slug


def _difficulty(played: Mapping[str, Sequence[TaskSum]]) -> Difficulty:
    models = {model: _score(played[model]) for model in sorted(played)}
    scores = models.values()
    repeated = [score for score in scores if score.runs > 1]
    return Difficulty(
        runs=sum(score.runs for score in scores),
        mean=sum(score.mean for score in scores) / len(scores),
        spread=sum(math.sqrt(score.variance) for score in repeated) / len(repeated)
        if repeated
        else None,
        models=models,
    )


def _score(sums: Sequence[TaskSum]) -> Score:
    runs = sum(task_sum.runs for task_sum in sums)
    mean = sum(task_sum.total for task_sum in sums) / runs
    variance = sum(task_sum.squares for task_sum in sums) / runs - mean * mean
    return Score(runs, mean, max(0.0, variance), max(task_sum.best for task_sum in sums))


def _task_sums(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, list[TaskSum]]:
    runs = tables.runs
    query = (
        sa.select(
            runs.c.job_id,
            runs.c.slug,
            runs.c.model,
            sa.func.count(),
            sa.func.sum(runs.c.reward),
            sa.func.sum(runs.c.reward * runs.c.reward),
            sa.func.max(runs.c.reward),
        )
        .where(
            runs.c.job_id.in_(job_ids),
            runs.c.reward.is_not(None),
            # The condition of the index on PostgreSQL; longer names do not occur in practice.
            sa.func.length(runs.c.slug) <= _LONGEST,
            sa.func.length(runs.c.model) <= _LONGEST,
        )
        .group_by(runs.c.job_id, runs.c.slug, runs.c.model)
    )
    by_job: dict[str, list[TaskSum]] = {}
    for job, slug, model, *sums in connection.execute(query):
        by_job.setdefault(job, []).append(TaskSum(intern(slug), intern(model), *sums))
    return by_job


_SUMS: CachedSums[list[TaskSum]] = CachedSums(_task_sums, [], MOST_SUMS, len)
_Known = dict[tuple[str, str], tuple[dict[str, Revision], dict[str, Difficulty]]]
_KNOWN: WeakKeyDictionary[Store, _Known] = WeakKeyDictionary()


def recent_runs(
    store: Store, team: str, taskset_id: str, slug: str, limit: int
) -> list[dict[str, Any]]:
    """Return the newest runs of a task, as short records."""
    runs, jobs = tables.runs, tables.jobs
    of_taskset = sa.select(jobs.c.id).where(jobs.c.team_id == team, jobs.c.taskset_id == taskset_id)
    names = ("trace_id", "job_id", "model", "status", "reward", "started_at", "ended_at")
    query = (
        sa.select(*(runs.c[name] for name in names))
        .where(runs.c.team_id == team, runs.c.slug == slug, runs.c.job_id.in_(of_taskset))
        .order_by(runs.c.started_at.desc(), runs.c.trace_id)
        .limit(limit)
    )
    shown_runs = []
    for row in store.rows(query):
        shown = as_dict(row)
        shown["seconds"] = seconds_between(row.started_at, shown.pop("ended_at"))
        shown["started_at"] = None if row.started_at is None else row.started_at.isoformat()
        shown_runs.append(shown)
    return shown_runs
