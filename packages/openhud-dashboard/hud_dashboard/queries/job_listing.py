"""Job list: filtered, sorted, paged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from hud.errors import UsageError
from hud.trace.recorded_time import seconds_between
from hud_platform.store import Store, tables
from hud_platform.store.cached_sums import CachedSums
from hud_platform.store.job_status import every_run_failed, outcome, statuses
from hud_platform.store.job_sums import JobSums, spreads_of, sums_of
from hud_platform.store.job_titles import titles_of
from hud_platform.store.records import taskset_names

MOST_CHOICES = 200
"""Maximum number of choices of one filter."""
MOST_ALIKE = 15
FOLDED = ("held_out", "subagent")
"""Purposes of jobs that always belong to another job or to a training run."""
MOST_SPREADS = 100_000
"""Maximum number of cached reward standard deviations of one store."""


@dataclass(frozen=True)
class JobFilter:
    """Filters of jobs; None: no filter."""

    taskset: str | None = None
    """Id."""
    model: str | None = None
    checkpoint: str | None = None
    """Id."""
    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None
    """Substring of the name, or start of the id."""
    purpose: str | None = None
    """A purpose, or `all`; None: all but folded ones."""
    under: str | None = None
    """Id of a job: those that are folded under it."""


def list_jobs(
    store: Store, team: str, which: JobFilter, sort: str, limit: int, offset: int
) -> tuple[list[dict[str, Any]], int]:
    """Return a page of the team's jobs, and their number. `sort` is a name of `SORTS`; prefix "-": descending."""
    jobs = tables.jobs
    with store.read() as connection:
        wanted = sa.select(jobs).where(_wanted(connection, team, which))
        # Without the sort column, which may be a sum over every run.
        total = connection.execute(wanted.with_only_columns(sa.func.count())).scalar_one()
        rows: Sequence[sa.Row[Any]]
        if sort.removeprefix("-") == "spread":
            rows = _by_spread(store, connection, team, wanted, sort, limit, offset)
        else:
            rows = connection.execute(_ordered(wanted, sort).limit(limit).offset(offset)).all()
        ids = [row.id for row in rows]
        sums = sums_of(connection, ids)
        states = statuses(connection, rows)
        players = _players(connection, ids)
        names = taskset_names(connection, team, rows)
        titles = titles_of(connection, {row.id: row.name for row in rows})
    items = [
        _item(row, sums[row.id], states[row.id])
        | players.get(row.id, {"models": [], "checkpoints": []})
        | {"taskset_name": names.get(row.taskset_id), "title": titles[row.id]}
        for row in rows
    ]
    return items, total


def choices(store: Store, team: str, model: str | None) -> dict[str, list[dict[str, str]]]:
    """Return the choices of the filters: `tasksets`, `models`, and `checkpoints` of a model, by id and name."""
    noted, sets, nodes = tables.job_models, tables.tasksets, tables.checkpoints
    models = sa.select(noted.c.model).where(noted.c.team_id == team).distinct()
    named = (
        sa.select(noted.c.checkpoint, nodes.c.name)
        .join(nodes, nodes.c.id == noted.c.checkpoint, isouter=True)
        .where(noted.c.team_id == team, noted.c.model == model, noted.c.checkpoint != "")
        .distinct()
        .limit(MOST_CHOICES)
    )
    tasksets = sa.select(sets.c.id, sets.c.name).where(sets.c.team_id == team)
    with store.read() as connection:
        rows = connection.execute(tasksets.order_by(sets.c.name).limit(MOST_CHOICES)).all()
        slugs = connection.execute(models.order_by(noted.c.model).limit(MOST_CHOICES)).scalars()
        return {
            "tasksets": [{"id": row.id, "name": row.name} for row in rows],
            "models": [{"id": slug, "name": slug} for slug in slugs],
            "checkpoints": []
            if model is None
            else [
                {"id": row.checkpoint, "name": row.name or row.checkpoint[:8]}
                for row in connection.execute(named)
            ],
        }


def jobs_like(store: Store, team: str, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the newest other jobs with the same taskset or, without one, the same tasks in the name."""
    jobs = tables.jobs
    tasks = job["name"].partition(" · ")[0]
    same = (
        jobs.c.taskset_id == job["taskset_id"]
        if job["taskset_id"]
        else jobs.c.name.startswith(tasks, autoescape=True)
    )
    query = (
        sa.select(jobs.c.id, jobs.c.name, jobs.c.created_at)
        .where(jobs.c.team_id == team, same, jobs.c.id != job["id"])
        .order_by(jobs.c.created_at.desc())
        .limit(MOST_ALIKE)
    )
    rows = store.rows(query)
    with store.read() as connection:
        titles = titles_of(connection, {row.id: row.name for row in rows})
    return [
        {"id": row.id, "title": titles[row.id], "created_at": row.created_at.isoformat()}
        for row in rows
    ]


def checkpoint_steps(store: Store, team: str, job_ids: Sequence[str]) -> dict[str, int] | None:
    """Return the step of the newest checkpoint that each job played; 0: the base of the model.
    None if the jobs played different models: their checkpoints have no order.
    """
    noted, nodes = tables.job_models, tables.checkpoints
    query = (
        sa.select(noted.c.job_id, noted.c.model, nodes.c.step)
        .join(nodes, nodes.c.id == noted.c.checkpoint, isouter=True)
        .where(noted.c.team_id == team, noted.c.job_id.in_(job_ids))
    )
    steps: dict[str, int] = {}
    rows = store.rows(query)
    for row in rows:
        steps[row.job_id] = max(steps.get(row.job_id, 0), row.step or 0)
    return steps if len({row.model for row in rows}) == 1 and len(steps) == len(job_ids) else None


def jobs_revision(store: Store, team: str, job_ids: Sequence[str]) -> str:
    """Return a revision string that changes when the team gets a new job or one of these jobs changes."""
    jobs, runs, played = tables.jobs, tables.runs, tables.rollouts
    queries = (
        sa.select(sa.func.count(), sa.func.count(jobs.c.ended_at)).where(jobs.c.team_id == team),
        sa.select(
            sa.func.count(), sa.func.count(runs.c.ended_at), sa.func.sum(runs.c.reward)
        ).where(runs.c.job_id.in_(job_ids)),
        sa.select(sa.func.count(), sa.func.count(played.c.ended_at)).where(
            played.c.job_id.in_(job_ids)
        ),
    )
    with store.read() as connection:
        counts = [value for query in queries for value in connection.execute(query).one()]
    return "-".join(str(value) for value in counts)


def folded_jobs(store: Store, team: str) -> dict[str, int]:
    """Return the numbers of the team's jobs that the list folds, by purpose."""
    jobs = tables.jobs
    query = sa.select(jobs.c.purpose, sa.func.count()).group_by(jobs.c.purpose)
    rows = store.rows(query.where(jobs.c.team_id == team, _folded()))
    return {row[0]: row[1] for row in rows}


def _folded() -> sa.ColumnElement[bool]:
    """Return the condition of jobs that the list folds: those of `FOLDED`, and all but the newest rollouts of a training run."""
    jobs, later = tables.jobs, tables.jobs.alias("later")
    newer = sa.or_(
        later.c.created_at > jobs.c.created_at,
        sa.and_(later.c.created_at == jobs.c.created_at, later.c.id > jobs.c.id),
    )
    same_run = later.c.training_run_id == jobs.c.training_run_id
    of_rollouts = later.c.purpose.not_in(FOLDED)
    replaced = sa.exists().where(same_run, of_rollouts, newer)
    return sa.or_(
        jobs.c.purpose.in_(FOLDED), sa.and_(jobs.c.training_run_id.is_not(None), replaced)
    )


def _under(job_id: str) -> sa.ColumnElement[bool]:
    """Return the condition of jobs that the list folds under a job."""
    jobs = tables.jobs
    upper, caller = jobs.alias("upper"), jobs.alias("caller")
    own = sa.select(upper.c.training_run_id).where(upper.c.id == job_id).scalar_subquery()
    of_run = sa.or_(caller.c.id == job_id, caller.c.training_run_id == own)
    callers = sa.select(caller.c.id).where(of_run)
    return sa.and_(
        jobs.c.id != job_id,
        sa.or_(jobs.c.training_run_id == own, jobs.c.called_by.in_(callers)),
    )


def _wanted(connection: sa.Connection, team: str, which: JobFilter) -> sa.ColumnElement[bool]:
    jobs, noted = tables.jobs, tables.job_models
    wanted = [jobs.c.team_id == team]
    if which.under is not None:
        wanted.append(_under(which.under))
    elif which.purpose is None:
        wanted.append(sa.not_(_folded()))
    elif which.purpose != "all":
        wanted.append(jobs.c.purpose == which.purpose)
    if which.taskset:
        wanted.append(jobs.c.taskset_id == which.taskset)
    if which.since:
        wanted.append(jobs.c.created_at >= which.since)
    if which.until:
        wanted.append(jobs.c.created_at < which.until)
    if which.text:
        begins = jobs.c.id.startswith(which.text.replace("-", "").lower(), autoescape=True)
        wanted.append(sa.or_(jobs.c.name.icontains(which.text, autoescape=True), begins))
    if which.model or which.checkpoint:
        played = [noted.c.team_id == team]
        played += [noted.c.model == which.model] if which.model else []
        played += [noted.c.checkpoint == which.checkpoint] if which.checkpoint else []
        wanted.append(jobs.c.id.in_(sa.select(noted.c.job_id).where(*played)))
    if which.status:
        # Jobs recorded as running may be over: only their status is computed.
        open_ones = sa.select(jobs).where(*wanted, jobs.c.status == "running")
        states = statuses(connection, connection.execute(open_ones).all())
        status = "completed" if which.status == "failed" else which.status
        now = [job_id for job_id, state in states.items() if state == status]
        stored = sa.and_(jobs.c.status == status, jobs.c.status != "running")
        wanted.append(sa.or_(stored, jobs.c.id.in_(now)))
        if status == "completed":
            failed = every_run_failed()
            wanted.append(failed if which.status == "failed" else sa.not_(failed))
    return sa.and_(*wanted)


def _ordered(query: sa.Select[Any], sort: str) -> sa.Select[Any]:
    jobs, runs = tables.jobs, tables.runs
    name, downwards = sort.removeprefix("-"), sort.startswith("-")
    if name not in SORTS:
        raise UsageError(f"Jobs cannot be sorted by {name!r}; there are {', '.join(SORTS)}.")
    key: sa.ColumnElement[Any]
    if name in _SUMMED:
        summed = (
            sa.select(runs.c.job_id, _SUMMED[name].label("key")).group_by(runs.c.job_id).subquery()
        )
        query = query.join(summed, summed.c.job_id == jobs.c.id, isouter=True)
        key = summed.c.key
    else:
        key = _STORED[name]
    order = key.desc().nulls_last() if downwards else key.asc().nulls_last()
    return query.order_by(order, jobs.c.created_at.desc(), jobs.c.id)


def _by_spread(
    store: Store,
    connection: sa.Connection,
    team: str,
    wanted: sa.Select[Any],
    sort: str,
    limit: int,
    offset: int,
) -> list[sa.Row[Any]]:
    """Return a page of jobs sorted by reward standard deviation, from the cache instead of a query over all runs."""
    jobs = tables.jobs
    _, spreads = _SPREADS.of_jobs(store, sa.select(jobs.c.id).where(jobs.c.team_id == team))
    newest = wanted.with_only_columns(jobs.c.id).order_by(jobs.c.created_at.desc(), jobs.c.id)
    values = {job: spreads.get(job) for job in connection.execute(newest).scalars()}
    measured = [(value, job) for job, value in values.items() if value is not None]
    measured.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    ordered = [job for _, job in measured] + [job for job in values if values[job] is None]
    shown = ordered[offset : offset + limit]
    rows = connection.execute(sa.select(jobs).where(jobs.c.id.in_(shown)))
    return sorted(rows, key=lambda row: shown.index(row.id))


_SPREADS: CachedSums[float | None] = CachedSums(spreads_of, None, MOST_SPREADS, lambda _: 1)
_STORED: dict[str, sa.ColumnElement[Any]] = {
    "started": tables.jobs.c.created_at,
    "name": sa.func.lower(tables.jobs.c.name),
    "duration": sa.type_coerce(tables.jobs.c.ended_at, sa.BigInteger)
    - sa.type_coerce(tables.jobs.c.created_at, sa.BigInteger),
}
_SUMMED: dict[str, sa.ColumnElement[Any]] = {
    "reward": sa.func.avg(tables.runs.c.reward),
    "runs": sa.func.count(),
    "failed": sa.func.count(tables.runs.c.failure_kind),
    "failed_calls": sa.func.sum(tables.runs.c.tool_errors + tables.runs.c.tool_time_outs),
    "tokens": sa.func.sum(tables.runs.c.prompt_tokens + tables.runs.c.completion_tokens),
    "cost": sa.func.sum(tables.runs.c.cost_usd),
}
SORTS = (*_STORED, *_SUMMED, "spread")


def _item(row: Any, sums: JobSums, status: str) -> dict[str, Any]:
    ended = row.ended_at or (None if status == "running" else sums.last_end)
    until = ended or datetime.now(UTC)
    return {
        "id": row.id,
        "name": row.name,
        "purpose": row.purpose,
        "taskset_id": row.taskset_id,
        "status": outcome(status, sums.runs, sums.failed),
        "group_size": row.group_size,
        "created_at": row.created_at.isoformat(),
        "ended_at": None if ended is None else ended.isoformat(),
        "seconds": seconds_between(row.created_at, until),
        **sums.shown(),
        **sums.progress(status, row.extra.get("planned")),
    }


def _players(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    noted = tables.job_models
    query = sa.select(noted).where(noted.c.job_id.in_(job_ids)).order_by(noted.c.model)
    by_job: dict[str, dict[str, list[str]]] = {}
    for row in connection.execute(query):
        played = by_job.setdefault(row.job_id, {"models": [], "checkpoints": []})
        if row.model not in played["models"]:
            played["models"].append(row.model)
        if row.checkpoint and row.checkpoint not in played["checkpoints"]:
            played["checkpoints"].append(row.checkpoint)
    return by_job
