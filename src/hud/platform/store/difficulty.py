"""Difficulty of a taskset's tasks for each model, from sums over jobs, without the runs themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from sys import intern
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from hud.platform.store import Store, tables
from hud.platform.store.kept_sums import KeptSums, Revision
from hud.platform.store.queries import as_dict
from hud.platform.store.tables import seconds_between

SOLVED = 1.0
"""The reward from which on a run solved its task."""
MOST_SUMS = 200_000
"""Kept of one store, about 40 MB."""
MOST_KNOWN = 50
"""Tasksets of one store whose difficulties are kept."""
_LONGEST = 200
"""Characters of a task's or a model's name in the index, on PostgreSQL."""


@dataclass(frozen=True, slots=True)
class TaskSum:
    """The measured runs of one task by one model in one job."""

    slug: str
    model: str
    runs: int
    total: float
    """Of the rewards."""
    squares: float
    best: float


@dataclass
class Score:
    """Results of one model's measured runs of one task."""

    runs: int
    mean: float
    variance: float
    """Of the rewards of its runs."""
    best: float

    @property
    def solved(self) -> bool:
        """True where a run solved the task."""
        return self.best >= SOLVED


@dataclass
class Difficulty:
    """One task over all models."""

    runs: int = 0
    mean: float | None = None
    """Of the models' means: a model with many runs counts no more than another."""
    spread: float | None = None
    """Standard deviation of the rewards of one model's runs, on average: 0 tells a trainer nothing."""
    models: dict[str, Score] = field(default_factory=dict)

    @property
    def solved_by(self) -> list[str]:
        """The models that solved it at least once."""
        return [model for model, score in self.models.items() if score.solved]

    def shown(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "solved_by": self.solved_by}


def difficulties(store: Store, team: str, taskset_id: str) -> dict[str, Difficulty]:
    """Return the difficulty of the tasks of a taskset that were run, by their names. It is shared: do not change it."""
    jobs = tables.jobs
    of_taskset = sa.select(jobs.c.id).where(jobs.c.team_id == team, jobs.c.taskset_id == taskset_id)
    revisions, sums = _SUMS.of_jobs(store, of_taskset)
    known = _KNOWN.setdefault(store, {})
    before = known.get((team, taskset_id))
    if before is not None and before[0] == revisions:
        return before[1]
    played: dict[str, dict[str, list[TaskSum]]] = {}
    for job in sums.values():
        for one in job:
            played.setdefault(one.slug, {}).setdefault(one.model, []).append(one)
    found = {slug: _difficulty(played[slug]) for slug in sorted(played)}
    if len(known) >= MOST_KNOWN:
        known.clear()
    known[team, taskset_id] = revisions, found
    return found


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
    runs = sum(one.runs for one in sums)
    mean = sum(one.total for one in sums) / runs
    variance = sum(one.squares for one in sums) / runs - mean * mean
    return Score(runs, mean, max(0.0, variance), max(one.best for one in sums))


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
            # What the index holds on PostgreSQL; names that long are nobody's.
            sa.func.length(runs.c.slug) <= _LONGEST,
            sa.func.length(runs.c.model) <= _LONGEST,
        )
        .group_by(runs.c.job_id, runs.c.slug, runs.c.model)
    )
    found: dict[str, list[TaskSum]] = {}
    for job, slug, model, *sums in connection.execute(query):
        found.setdefault(job, []).append(TaskSum(intern(slug), intern(model), *sums))
    return found


_SUMS: KeptSums[list[TaskSum]] = KeptSums(_task_sums, [], MOST_SUMS, len)
_Known = dict[tuple[str, str], tuple[dict[str, Revision], dict[str, Difficulty]]]
_KNOWN: WeakKeyDictionary[Store, _Known] = WeakKeyDictionary()


def recent_runs(
    store: Store, team: str, taskset_id: str, slug: str, limit: int
) -> list[dict[str, Any]]:
    """Return the newest runs of a task, in short."""
    runs, jobs = tables.runs, tables.jobs
    of_taskset = sa.select(jobs.c.id).where(jobs.c.team_id == team, jobs.c.taskset_id == taskset_id)
    names = ("trace_id", "job_id", "model", "status", "reward", "started_at", "ended_at")
    query = (
        sa.select(*(runs.c[name] for name in names))
        .where(runs.c.team_id == team, runs.c.slug == slug, runs.c.job_id.in_(of_taskset))
        .order_by(runs.c.started_at.desc(), runs.c.trace_id)
        .limit(limit)
    )
    found = []
    for row in store.rows(query):
        shown = as_dict(row)
        shown["seconds"] = seconds_between(row.started_at, shown.pop("ended_at"))
        shown["started_at"] = None if row.started_at is None else row.started_at.isoformat()
        found.append(shown)
    return found
