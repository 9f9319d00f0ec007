"""Rewards of checkpoints by task, from their recorded jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import sqlalchemy as sa

from hud_platform.store import Store, tables
from hud_platform.store.job_status import has_ended, statuses

MOST_JOBS = 40
"""Maximum number of jobs of a checkpoint that are read, newest first."""
MOST_RUNS = 20_000
REPORTED = tables.runs.c.completion_tokens > 0
"""Condition that a run has a turn of a model, as its recorder reports."""


@dataclass(frozen=True)
class MeasuredRun:
    """Run with a reward."""

    trace_id: str
    reward: float


def typical(runs: Sequence[MeasuredRun]) -> MeasuredRun:
    """Return the run whose reward is nearest to the mean of `runs`; the first one in a tie."""
    mean = fmean(run.reward for run in runs)
    return min(runs, key=lambda run: abs(run.reward - mean))


def measured_runs(
    store: Store, team: str, model: str, checkpoint: str | None, slugs: Collection[str] | None
) -> dict[str, list[MeasuredRun]]:
    """Return the measured runs of a checkpoint by task, without those of training's own rollouts.

    `checkpoint` None: the base. `slugs`: only these tasks; None: all.
    """
    by_slug: dict[str, list[MeasuredRun]] = {}
    for slug, trace_id, reward in ended_runs(store, team, model, checkpoint, slugs):
        if reward is not None:
            by_slug.setdefault(slug, []).append(MeasuredRun(trace_id, reward))
    return by_slug


def ended_runs(
    store: Store,
    team: str,
    model: str,
    checkpoint: str | None,
    slugs: Collection[str] | None,
    *,
    is_played: sa.ColumnElement[bool] = REPORTED,
) -> Iterator[tuple[str, str, float | None]]:
    """Yield slug, trace id and reward of ended runs, newest first.

    `is_played` is the condition on a row of `runs` that the model had a turn: as reported, or as this platform sampled it.
    Runs without a turn of the model are unmeasured: they name no weights, and belong to the checkpoint by their job. A job
    of checkpoints alone holds none of the base.
    """
    jobs, runs, noted = tables.jobs, tables.runs, tables.job_models
    played = (
        sa.select(jobs)
        .join(noted, noted.c.job_id == jobs.c.id)
        .where(
            noted.c.team_id == team,
            noted.c.model == model,
            noted.c.checkpoint == (checkpoint or ""),
            # Rollouts of training, and of agents that they call, are from many checkpoints, on trained tasks.
            jobs.c.purpose.in_(("evaluation", "held_out")),
        )
        .order_by(jobs.c.created_at.desc())
        .limit(MOST_JOBS)
    )
    weights = runs.c.checkpoint == checkpoint if checkpoint else runs.c.checkpoint.is_(None)
    with store.read() as connection:
        states = statuses(connection, connection.execute(played).all())
    unplayed = sa.or_(runs.c.model.is_(None), runs.c.model == model)
    if not checkpoint:
        of_checkpoints = sa.select(noted.c.job_id).where(
            noted.c.team_id == team, noted.c.model == model, noted.c.checkpoint != ""
        )
        unplayed = sa.and_(unplayed, runs.c.job_id.not_in(of_checkpoints))
    query = (
        sa.select(
            *(runs.c.job_id, runs.c.status, runs.c.slug, runs.c.trace_id),
            sa.case((is_played, runs.c.reward)).label("reward"),
        )
        .where(
            runs.c.job_id.in_(states),
            runs.c.team_id == team,
            sa.case((is_played, sa.and_(runs.c.model == model, weights)), else_=unplayed),
        )
        .order_by(runs.c.started_at.desc(), runs.c.trace_id)
        .limit(MOST_RUNS)
    )
    for row in store.rows(query):
        ended = has_ended(row.status, states[row.job_id] != "running")
        if ended and row.slug is not None and (slugs is None or row.slug in slugs):
            yield row.slug, row.trace_id, row.reward
