"""Journal lines of attempts at rollouts, as workers bring them: bound to the rollout that the worker holds.

A worker says what happened in its rollout, and in the runs of the subagents which that called. Its lines change no other
run and no other job, and do not say which job or group the rollout belongs to.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from hud import exact_json
from hud.errors import UsageError
from hud.trace import derived_id
from hud.trace.recording.journal import Event, decode_events, named
from hud_platform.store import Store, tables
from hud_platform.store.ingest import NOT_OURS, Batch, problem_of
from hud_platform.store.queries import in_parts

_logger = logging.getLogger("hud.platform")


@dataclass(frozen=True)
class Attempt:
    """The rollout that an attempt is at."""

    team_id: str
    trace_id: str
    job_id: str | None = None
    group_id: str | None = None
    number: int = 0
    """Index of the run in its group."""


@dataclass(frozen=True)
class AttemptRows:
    """Journal lines of one attempt, as rows that are bound to it."""

    attempt: Attempt
    batch: Batch
    others: tuple[str, ...]
    """Runs that the lines open, besides the attempt's own."""
    again: bool
    """The rows take the place of what earlier attempts wrote."""


def read_attempt(store: Store, attempt: Attempt, events: bytes, *, again: bool) -> AttemptRows:
    """Return journal lines of an attempt as rows.

    Steps that cannot be stored are left out, with a warning: a run that was graded does not fail by one of them.
    Raises `UsageError` for damaged lines, where a run itself cannot be stored, and for lines of what is not the attempt's.
    """
    parsed = []
    for event in decode_events(events):
        if event is None:
            raise UsageError("The events of this attempt are damaged.")
        parsed.append(event)
    team = attempt.team_id
    try:
        batch = Batch.of(store, team, parsed)
    except NOT_OURS:
        batch = Batch.of(
            store, team, [event for event in parsed if _is_storable(store, team, event)]
        )
    _bind(batch, attempt)
    return AttemptRows(attempt, batch, _other_runs(batch, attempt), again)


def write_attempts(connection: sa.Connection, attempts: Sequence[AttemptRows]) -> None:
    """Write the rows of attempts at different rollouts.

    Raises `UsageError` where one of them opens a run that another has, or that is in the store already: subagents' runs are
    new with each attempt.
    """
    opened = [trace for rows in attempts for trace in (rows.attempt.trace_id, *rows.others)]
    others = sorted(trace for rows in attempts for trace in rows.others)
    if len(set(opened)) < len(opened) or _are_known(connection, others):
        raise UsageError("These events hold a run that is none of this rollout's.")
    forget_steps(connection, [rows.attempt.trace_id for rows in attempts if rows.again])
    by_team: defaultdict[str, list[Batch]] = defaultdict(list)
    for rows in attempts:
        by_team[rows.attempt.team_id].append(rows.batch)
    for batches in by_team.values():
        Batch.joined(batches).write(connection)


def _is_storable(store: Store, team: str, event: Event) -> bool:
    """Return False, with a warning, for a step that cannot be stored; raises `UsageError` if it is a run."""
    problem = problem_of(store, team, event)
    if problem is None:
        return True
    if event.kind in (b"R", b"E"):
        raise UsageError(f"{named(event)} cannot be stored: {problem}.") from problem
    _logger.warning("Left out, for it cannot be stored: %s (%s).", named(event), problem)
    return False


def forget_steps(connection: sa.Connection, traces: Sequence[str]) -> None:
    """Delete what was recorded of these runs' steps."""
    for some in in_parts(traces):
        for table in (tables.steps, tables.samples, tables.trainer_logprobs):
            connection.execute(sa.delete(table).where(table.c.trace_id.in_(some)))


def _bind(batch: Batch, attempt: Attempt) -> None:
    """Put the attempt's run where it belongs; refuse jobs that none of its subagents opened."""
    own = {"job_id": attempt.job_id, "group_id": attempt.group_id, "attempt": attempt.number}
    for rows in (batch.opened, batch.ended):
        if attempt.trace_id in rows:
            rows[attempt.trace_id] |= own
    job_ids = {attempt.job_id} - {None}
    waiting = {job_id: _tool(row) for job_id, row in batch.jobs.items()}
    while derived := {
        job_id
        for job_id, tool in waiting.items()
        if any(job_id == derived_id(parent, tool) for parent in job_ids if parent is not None)
    }:
        job_ids |= derived
        waiting = {job_id: tool for job_id, tool in waiting.items() if job_id not in derived}
    subagents = job_ids - {attempt.job_id}
    ended = {str(end["job"]) for end in batch.job_ends}
    if waiting or ended - subagents:
        raise UsageError(
            "These events open or end a job that is none of this rollout's subagents'."
        )
    for rows in (batch.opened, batch.ended):
        for trace_id, row in rows.items():
            if trace_id != attempt.trace_id and row["job_id"] not in (None, *subagents):
                raise UsageError(
                    "These events put a run into a job that is none of this rollout's."
                )


def _tool(job: dict[str, object]) -> str:
    """Return the tool that a subagent's job is for; "" for other jobs."""
    return str(exact_json.loads(str(job["extra"])).get("called_as") or "")


def _other_runs(batch: Batch, attempt: Attempt) -> tuple[str, ...]:
    """Return the runs besides the attempt's own. Each must be opened here: steps alone have no owner."""
    opened = {*batch.opened, *batch.ended}
    written = {str(row["trace_id"]) for row in (*batch.steps, *batch.samples)}
    if written - opened - {attempt.trace_id}:
        raise UsageError("These events hold steps of a run that is none of this rollout's.")
    return tuple(sorted(opened - {attempt.trace_id}))


def _are_known(connection: sa.Connection, traces: Sequence[str]) -> bool:
    """Return whether one of these runs is in the store."""
    traces_of = sa.select(tables.runs.c.trace_id).limit(1)
    return any(
        connection.execute(traces_of.where(tables.runs.c.trace_id.in_(some))).first() is not None
        for some in in_parts(traces)
    )
