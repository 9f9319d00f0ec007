"""Outcomes of runs, and the rewards that rules make of them.

An outcome is a named value that becomes known after a run: a ticket was resolved, a person was content. Outcomes are only added. The
reward of a run is a rule over its grade and its outcomes; rules have versions, and a run names the version of its reward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from hud.errors import NotFoundError, UsageError
from hud.trace.ids import new_id
from hud.trace.recorded_time import now
from hud_platform.store import Store, tables
from hud_platform.store.ownership import refuse_foreign
from hud_platform.store.queries import as_dict, in_parts

REWARD = "reward"
"""Name of the outcome that is the reward of a run without a grade, where no rule is set."""
GRADE = "grade"
"""Name by which a weighted sum has the grade's reward among its terms."""
LONGEST_NAME = 200
MOST_OUTCOMES = 1000
"""Outcomes of one run: each of them is read whenever another one is added."""
MOST_TERMS = 100
"""Terms of a weighted sum."""


Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
Weight = Annotated[float, Field(allow_inf_nan=False, ge=-1e100, le=1e100)]


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid")


class GradeRule(_Rule):
    """The grade's reward; without one, the newest outcome `reward`."""

    kind: Literal["grade"] = "grade"


class NewestRule(_Rule):
    """The newest outcome of a name; without one, the grade's reward."""

    kind: Literal["newest"] = "newest"
    name: Name


class SumRule(_Rule):
    """A weighted sum of the newest outcomes, the grade (`grade`) among them; those that are missing count 0.

    Without any of its outcomes it is the grade's reward; a sum that is no reward is not measured.
    """

    kind: Literal["sum"] = "sum"
    weights: dict[Name, Weight] = Field(min_length=1, max_length=MOST_TERMS)


Rule = Annotated[GradeRule | NewestRule | SumRule, Field(discriminator="kind")]
_RULE: TypeAdapter[Rule] = TypeAdapter(Rule)


def reward_by(rule: Rule, graded: float | None, outcomes: Mapping[str, float]) -> float | None:
    """Return the reward of a run by its grade's reward and its newest outcomes; None: not measured."""
    match rule:
        case GradeRule():
            return outcomes.get(REWARD) if graded is None else graded
        case NewestRule():
            return outcomes.get(rule.name, graded)
        case SumRule():
            if not rule.weights.keys() & outcomes.keys():
                return graded
            values = {**outcomes, **({} if graded is None else {GRADE: graded})}
            try:
                total = math.fsum(
                    weight * values.get(name, 0.0) for name, weight in rule.weights.items()
                )
            except (OverflowError, ValueError):  # Beyond all floats, or infinities of both signs.
                return None
            return total if abs(total) <= tables.LARGEST_REWARD else None


def add_outcome(
    store: Store,
    team: str,
    trace_id: str,
    name: str,
    value: float,
    *,
    source: str | None = None,
    supersedes: str | None = None,
) -> dict[str, Any]:
    """Add an outcome to a run; returns the outcome, with the run's `reward` after it.

    Raises `NotFoundError` for a run of another team and an outcome that is not the run's, `UsageError` for a value that is no reward.
    """
    with store.begin() as connection:
        outcome = append(
            connection, team, trace_id, name, value, source=source, supersedes=supersedes
        )
        apply_rules(connection, [trace_id])
        query = sa.select(tables.runs.c.reward, tables.runs.c.reward_rule)
        run = connection.execute(query.where(tables.runs.c.trace_id == trace_id)).one()
    return {**outcome, "reward": run.reward, "reward_rule": run.reward_rule}


def append(
    connection: sa.Connection,
    team: str,
    trace_id: str,
    name: str,
    value: float,
    *,
    source: str | None = None,
    supersedes: str | None = None,
) -> dict[str, Any]:
    """Add an outcome, in a transaction. Raises `NotFoundError` and `UsageError` as `add_outcome` does."""
    if not 0 < len(name) <= LONGEST_NAME or len(source or "") > LONGEST_NAME:
        raise UsageError(
            f"The name of an outcome, and its source, have 1 to {LONGEST_NAME} characters."
        )
    if not (math.isfinite(value) and abs(value) <= tables.LARGEST_REWARD):
        raise UsageError(f"The value of an outcome is a number, not {value}.")
    refuse_foreign(connection, team, [], [trace_id])
    runs, outcomes = tables.runs, tables.outcomes
    owner = connection.execute(
        sa.select(runs.c.team_id).where(runs.c.trace_id == trace_id)
    ).scalar()
    if owner != team:
        raise NotFoundError(f"There is no trace {trace_id!r}; `hud jobs` lists what was recorded.")
    count = sa.select(sa.func.count()).where(outcomes.c.trace_id == trace_id)
    if connection.execute(count).scalar_one() >= MOST_OUTCOMES:
        raise UsageError(f"The run has {MOST_OUTCOMES:,} outcomes, which are the most.")
    if supersedes is not None:
        query = sa.select(outcomes.c.trace_id).where(outcomes.c.id == supersedes)
        if connection.execute(query).scalar() != trace_id:
            raise NotFoundError(f"The run has no outcome {supersedes!r}.")
    created = now()
    row: dict[str, Any] = {
        "id": new_id(),
        "team_id": team,
        "trace_id": trace_id,
        "name": name,
        "value": value,
        "source": source,
        "supersedes": supersedes,
        "created_at": created,
    }
    connection.execute(sa.insert(outcomes).values(row))
    return {**row, "created_at": created.isoformat()}


def outcomes_of(store: Store, trace_id: str) -> list[dict[str, Any]]:
    """Return the outcomes of a run, oldest first."""
    table = tables.outcomes
    query = sa.select(table).where(table.c.trace_id == trace_id)
    rows = store.rows(query.order_by(table.c.created_at, table.c.id))
    return [{**as_dict(row), "created_at": row.created_at.isoformat()} for row in rows]


def set_rule(store: Store, team: str, rule: Rule, job_id: str | None = None) -> int:
    """Add the next version of a team's rule, for one job or for all; rewards of runs with outcomes change. Returns the version.

    Raises `NotFoundError` for a job of another team.
    """
    rules, runs, outcomes = tables.reward_rules, tables.runs, tables.outcomes
    with store.begin() as connection:
        if job_id is not None:
            query = sa.select(tables.jobs.c.team_id).where(tables.jobs.c.id == job_id)
            if connection.execute(query).scalar() != team:
                raise NotFoundError(
                    f"There is no job {job_id!r}; `hud jobs` lists what was recorded."
                )
        newest = sa.select(sa.func.max(rules.c.version)).where(rules.c.team_id == team)
        version = (connection.execute(newest).scalar() or 0) + 1
        connection.execute(
            sa.insert(rules).values(
                team_id=team,
                version=version,
                job_id=job_id or "",
                rule=rule.model_dump(),
                created_at=now(),
            )
        )
        affected = sa.select(outcomes.c.trace_id).where(outcomes.c.team_id == team).distinct()
        if job_id is not None:
            affected = affected.join(runs, runs.c.trace_id == outcomes.c.trace_id)
            affected = affected.where(runs.c.job_id == job_id)
        apply_rules(connection, list(connection.execute(affected).scalars()))
    return version


def job_rules(store: Store, team: str, jobs: Iterable[str]) -> list[Rule]:
    """Return the rule that holds for each of these jobs of a team."""
    with store.read() as connection:
        rules = _rules(connection, team)
    return [rules.get(job, rules.get("", (0, GradeRule())))[1] for job in jobs]


def rules_of(store: Store, team: str) -> list[dict[str, Any]]:
    """Return all versions of a team's rules, oldest first."""
    rules = tables.reward_rules
    query = sa.select(rules).where(rules.c.team_id == team).order_by(rules.c.version)
    return [
        {
            "version": row.version,
            "job_id": row.job_id or None,
            "rule": row.rule,
            "created_at": row.created_at.isoformat(),
        }
        for row in store.rows(query)
    ]


def apply_rules(connection: sa.Connection, trace_ids: Iterable[str]) -> None:
    """Set the rewards of those of these runs that have outcomes."""
    for some in in_parts(sorted(set(trace_ids))):
        outcomes = _newest_outcomes(connection, some)
        if outcomes:
            _set_rewards(connection, outcomes)


def _newest_outcomes(
    connection: sa.Connection, trace_ids: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the newest value of each name, by run; superseded outcomes do not count."""
    table = tables.outcomes
    query = sa.select(table).where(table.c.trace_id.in_(trace_ids))
    rows = connection.execute(query.order_by(table.c.created_at, table.c.id)).all()
    replaced = {row.supersedes for row in rows}
    newest: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.id not in replaced:
            newest.setdefault(row.trace_id, {})[row.name] = row.value
    return newest


def _set_rewards(connection: sa.Connection, outcomes: Mapping[str, Mapping[str, float]]) -> None:
    from hud_platform.store.ingest import to_be_indexed  # Imports this module.

    runs = tables.runs
    columns = (runs.c.trace_id, runs.c.team_id, runs.c.job_id, runs.c.reward)
    query = sa.select(*columns, runs.c.reward_rule, runs.c.graded_reward)
    rows = connection.execute(query.where(runs.c.trace_id.in_(list(outcomes)))).all()
    for row in rows:
        to_be_indexed(connection, row.team_id, [row.trace_id])
    by_team = {row.team_id: _rules(connection, row.team_id) for row in rows}
    for row in rows:
        rules = by_team[row.team_id]
        version, rule = rules.get(row.job_id or "", rules.get("", (0, GradeRule())))
        graded = row.reward if row.reward_rule is None else row.graded_reward
        reward = reward_by(rule, graded, outcomes[row.trace_id])
        values = {"reward": reward, "reward_rule": version, "graded_reward": graded}
        connection.execute(sa.update(runs).where(runs.c.trace_id == row.trace_id).values(values))


def _rules(connection: sa.Connection, team: str) -> dict[str, tuple[int, Rule]]:
    """Return the newest version and rule of a team, by job; of all jobs by the empty text."""
    rules = tables.reward_rules
    query = sa.select(rules).where(rules.c.team_id == team).order_by(rules.c.version)
    return {
        row.job_id: (row.version, _RULE.validate_python(row.rule))
        for row in connection.execute(query)
    }
