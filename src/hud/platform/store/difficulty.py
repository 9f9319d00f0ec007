"""How hard the tasks of a taskset are, and for whom: summed up from an index, without the runs themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from hud.platform.store import tables
from hud.platform.store.store import Store

SOLVED = 1.0
"""The reward from which on a run solved its task."""
_LONGEST = 200
"""Characters of a task's or a model's name in the index, on PostgreSQL."""


@dataclass
class Score:
    """What one model's measured runs of one task came to."""

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


def difficulties(
    store: Store, team: str, taskset_id: str, slugs: Sequence[str] | None = None
) -> dict[str, Difficulty]:
    """Return the difficulty of the tasks that were run, of all of a taskset or of those named, by their names."""
    runs, jobs = tables.runs, tables.jobs
    of_taskset = sa.select(jobs.c.id).where(jobs.c.team_id == team, jobs.c.taskset_id == taskset_id)
    wanted = [
        runs.c.team_id == team,
        runs.c.job_id.in_(of_taskset),
        runs.c.reward.is_not(None),
        # What the index holds on PostgreSQL; names that long are nobody's.
        sa.func.length(runs.c.slug) <= _LONGEST,
        sa.func.length(runs.c.model) <= _LONGEST,
    ]
    if slugs is not None:
        wanted.append(runs.c.slug.in_(slugs))
    query = (
        sa.select(
            runs.c.slug,
            runs.c.model,
            sa.func.count(),
            sa.func.avg(runs.c.reward),
            sa.func.avg(runs.c.reward * runs.c.reward),
            sa.func.max(runs.c.reward),
        )
        .where(*wanted)
        .group_by(runs.c.slug, runs.c.model)
        .order_by(runs.c.slug, runs.c.model)
    )
    found: dict[str, Difficulty] = {}
    with store.read() as connection:
        for slug, model, count, mean, square, best in connection.execute(query):
            score = Score(count, mean, max(0.0, square - mean * mean), best)
            found.setdefault(slug, Difficulty()).models[model] = score
    for one in found.values():
        scores = one.models.values()
        one.runs = sum(score.runs for score in scores)
        one.mean = sum(score.mean for score in scores) / len(scores)
        repeated = [score for score in scores if score.runs > 1]
        if repeated:
            one.spread = sum(math.sqrt(score.variance) for score in repeated) / len(repeated)
    return found


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
    with store.read() as connection:
        rows = connection.execute(query).mappings().all()
    found = []
    for row in rows:
        shown = {name: row[name] for name in names}
        began, ended = shown.pop("started_at"), shown.pop("ended_at")
        shown["started_at"] = None if began is None else began.isoformat()
        shown["seconds"] = None if None in (began, ended) else (ended - began).total_seconds()
        found.append(shown)
    return found
