"""What the runs of jobs sum up to: rewards with their interval, tokens, cost. Read from one index, never from the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from hud.eval.statistics import Interval, clustered_interval
from hud.platform.store import tables
from hud.platform.store.tables import Moment

RESAMPLES = 1_000
"""Of the bootstrap: a list draws many intervals, each of which is shown to three digits."""
_IDS_AT_ONCE = 500


@dataclass
class JobSums:
    """Sums over the runs of one job."""

    runs: int = 0
    running: int = 0
    graded: int = 0
    failed: int = 0
    reward: float | None = None
    low: float | None = None
    """Of the 95% interval of the mean reward, over groups; None for fewer than two groups."""
    high: float | None = None
    spread: float | None = None
    """Mean over groups of two runs or more of the standard deviation of their rewards."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    last_end: Any = None
    """When the last run to end ended."""

    def shown(self) -> dict[str, Any]:
        """The sums as plain data."""
        return {name: value for name, value in asdict(self).items() if name != "last_end"}


def sums_of(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, JobSums]:
    """Return the sums of each of these jobs that has a run."""
    found: dict[str, JobSums] = {}
    for start in range(0, len(job_ids), _IDS_AT_ONCE):
        groups: dict[str, list[Any]] = {}
        for row in connection.execute(_groups(job_ids[start : start + _IDS_AT_ONCE])):
            groups.setdefault(row.job_id, []).append(row)
        found |= {job_id: _summed(rows) for job_id, rows in groups.items()}
    return found


def _groups(job_ids: Sequence[str]) -> sa.Select[Any]:
    """One row for each group: a mean needs its runs, an interval and a spread its groups."""
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
            sa.func.sum(runs.c.cost_usd).label("cost_usd"),
            sa.func.max(runs.c.ended_at, type_=Moment).label("last_end"),
        )
        .where(runs.c.job_id.in_(job_ids))
        # Runs that are of no group stand for themselves.
        .group_by(runs.c.job_id, runs.c.group_id)
    )


def _summed(groups: Sequence[Any]) -> JobSums:
    sums = JobSums()
    for group in groups:
        sums.runs += group.runs
        sums.running += group.running
        sums.graded += group.graded
        sums.failed += group.failed
        sums.prompt_tokens += group.prompt_tokens or 0
        sums.completion_tokens += group.completion_tokens or 0
        if group.cost_usd is not None:
            sums.cost_usd = (sums.cost_usd or 0.0) + group.cost_usd
        if group.last_end is not None:
            sums.last_end = max(sums.last_end or group.last_end, group.last_end)
    graded = [group for group in groups if group.graded]
    if graded:
        sums.reward = sum(group.total for group in graded) / sums.graded
        interval = _interval(tuple((group.total, group.graded) for group in graded))
        if interval is not None:
            sums.low, sums.high = interval.low, interval.high
        spreads = [_deviation(group) for group in graded if group.graded > 1]
        sums.spread = sum(spreads) / len(spreads) if spreads else None
    return sums


def _deviation(group: Any) -> float:
    mean = group.total / group.graded
    return math.sqrt(max(0.0, group.squares / group.graded - mean * mean))


@lru_cache(maxsize=10_000)
def _interval(groups: tuple[tuple[float, int], ...]) -> Interval | None:
    # A cluster enters the bootstrap by its sum and its size alone.
    clusters = [[total / size] * size for total, size in groups]
    return clustered_interval(clusters, resamples=RESAMPLES)
