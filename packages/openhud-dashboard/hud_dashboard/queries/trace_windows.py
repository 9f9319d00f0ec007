"""Paged reads of traces: windows of steps, and the neighbouring runs of a run.
Payloads are returned as stored: large attachments as names of blobs, tokens separately. Callers must have found the
run with `records.find_run`, which checks its team.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud.errors import NotFoundError
from hud.learning.failed_runs import failure_of
from hud.trace.sampled.token_columns import unpack_ids, unpack_logprobs
from hud_platform.store import Store, tables
from hud_platform.store.job_titles import titles_of
from hud_platform.store.queries import Query, as_dict
from hud_platform.store.records import steps_in_order

WINDOW_STEPS = 100
WINDOW_BYTES = 4 << 20
"""Maximum total size of the payloads in a window; a larger step is a window of its own."""
MOST_SIBLINGS = 256
LOOK_BACK = 10
"""Number of steps before a step that are searched for its state."""
MOST_OF_GROUP = 500
_DRAWN = ("step_id", "output", "logprobs", "checkpoint", "swaps", "temperature")
_RUN = ("trace_id", "slug", "status", "reward", "failure_kind", "group_id", "attempt", "model")

Payload = dict[str, Any]


@dataclass(frozen=True)
class Window:
    """Range of steps that are read together."""

    first: int
    last: int
    count: int

    def holds(self, step_id: int) -> bool:
        """Return True if the range includes this step number."""
        return self.first <= step_id <= self.last


@dataclass(frozen=True)
class Drawn:
    """Tokens that a policy sampled in one step."""

    step_id: int
    ids: list[int]
    logprobs: list[float]
    """Natural log, under the policy that sampled: one for each id, or empty."""
    checkpoint: str | None
    swaps: list[tuple[int, str | None]]
    temperature: float


def windows(store: Store, trace_id: str) -> list[Window]:
    """Return the windows of a trace, computed from the lengths of its steps."""
    steps = tables.steps.c
    lengths = (steps.step_id, sa.func.length(steps.payload))
    sizes = store.rows(steps_in_order(trace_id).with_only_columns(*lengths))
    parts: list[Window] = []
    first, last, count, size = 0, 0, 0, 0
    for step_id, length in sizes:
        if count and (count == WINDOW_STEPS or size + length > WINDOW_BYTES):
            parts.append(Window(first, last, count))
            count, size = 0, 0
        if not count:
            first = step_id
        last, count, size = step_id, count + 1, size + length
    return [*parts, Window(first, last, count)] if count else parts


def steps_between(store: Store, trace_id: str, first: int, last: int) -> list[tuple[int, Payload]]:
    """Return the steps from `first` to `last`, inclusive, at most as many as fit a window."""
    between = tables.steps.c.step_id.between(first, last)
    return _steps(store, steps_in_order(trace_id).where(between).limit(WINDOW_STEPS))


def steps_from(store: Store, trace_id: str, offset: int, limit: int) -> list[tuple[int, Payload]]:
    """Return steps by their position in the trace, from 0, independent of their numbers."""
    return _steps(store, steps_in_order(trace_id).offset(offset).limit(limit))


def state_before(store: Store, trace_id: str, step_id: int) -> Any:
    """Return the environment's state before a step; None if none of the `LOOK_BACK` steps before recorded one."""
    for _, payload in reversed(
        steps_between(store, trace_id, max(0, step_id - LOOK_BACK), step_id - 1)
    ):
        extra = payload.get("extra")
        if isinstance(extra, dict) and extra.get("state") is not None:
            return extra["state"]
    return None


def find_step(store: Store, trace_id: str, step_id: int) -> Payload:
    """Return one step. Raises `NotFoundError` for an unknown number."""
    steps = steps_between(store, trace_id, step_id, step_id)
    if not steps:
        raise NotFoundError(f"There is no step {step_id} in the trace {trace_id}.")
    return steps[0][1]


def every_step(store: Store, trace_id: str) -> Iterator[tuple[int, Payload]]:
    """Yield all steps in order, with a few in memory at a time."""
    for window in windows(store, trace_id):
        yield from steps_between(store, trace_id, window.first, window.last)


def drawn_between(store: Store, trace_id: str, first: int, last: int) -> dict[int, Drawn]:
    """Return the sampled tokens of the steps from `first` to `last`, by step."""
    samples = tables.samples
    rows = store.rows(
        sa.select(*(samples.c[name] for name in _DRAWN)).where(
            samples.c.trace_id == trace_id, samples.c.step_id.between(first, last)
        )
    )
    return {
        row.step_id: Drawn(
            row.step_id,
            unpack_ids(row.output),
            unpack_logprobs(row.logprobs),
            row.checkpoint,
            [] if row.swaps is None else [tuple(swap) for swap in exact_json.loads(row.swaps)],
            row.temperature,
        )
        for row in rows
    }


def has_samples(store: Store, trace_id: str) -> bool:
    """Return True if sampled tokens of the trace are recorded."""
    samples = tables.samples
    query = sa.select(samples.c.step_id).where(samples.c.trace_id == trace_id).limit(1)
    return store.row(query) is not None


def last_step(store: Store, trace_id: str) -> tuple[int, int]:
    """Return the number of the last step, and the count of steps; (0, 0) without steps."""
    steps = tables.steps
    of_all = sa.select(sa.func.max(steps.c.step_id), sa.func.count())
    ((last, count),) = store.rows(of_all.where(steps.c.trace_id == trace_id))
    return last or 0, count


def job_of(store: Store, run: dict[str, Any]) -> dict[str, str] | None:
    """Return the id and the title of a run's job; None without a recorded job."""
    jobs = tables.jobs
    own_job = (jobs.c.id == run["job_id"], jobs.c.team_id == run["team_id"])
    with store.read() as connection:
        row = connection.execute(sa.select(jobs.c.id, jobs.c.name).where(*own_job)).first()
        if row is None:
            return None
        return {"id": row.id, "title": titles_of(connection, {row.id: row.name})[row.id]}


def siblings(store: Store, run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the runs of the same task in the same job, including this one, in the order of attempts."""
    if run["job_id"] is None or run["slug"] is None:
        return []
    runs = tables.runs
    query = (
        sa.select(*(runs.c[name] for name in _RUN))
        .where(
            runs.c.job_id == run["job_id"],
            runs.c.team_id == run["team_id"],
            runs.c.slug == run["slug"],
        )
        .order_by(runs.c.attempt, runs.c.started_at, runs.c.trace_id)
        .limit(MOST_SIBLINGS)
    )
    return [as_dict(row) for row in store.rows(query)]


def neighbours(store: Store, run: dict[str, Any]) -> dict[str, str | None]:
    """Return the runs before and after one in its job: `previous`, `next`, and the failed `previous_failed`, `next_failed`."""
    neighbour_ids: dict[str, str | None] = dict.fromkeys(
        ("previous", "next", "previous_failed", "next_failed")
    )
    runs = tables.runs
    if run["job_id"] is None or run["started_at"] is None:
        return neighbour_ids
    place = sa.tuple_(runs.c.started_at, runs.c.trace_id)
    with store.read() as connection:
        started_at = connection.execute(
            sa.select(runs.c.started_at).where(runs.c.trace_id == run["trace_id"])
        ).scalar_one()
        here = sa.tuple_(
            sa.literal(started_at, runs.c.started_at.type), sa.literal(run["trace_id"])
        )
        of_job = sa.and_(runs.c.job_id == run["job_id"], runs.c.team_id == run["team_id"])
        for name, later in (("previous", False), ("next", True)):
            order = (runs.c.started_at, runs.c.trace_id)
            query = (
                sa.select(runs.c.trace_id)
                .where(of_job, place > here if later else place < here)
                .order_by(*(order if later else [column.desc() for column in order]))
                .limit(1)
            )
            neighbour_ids[name] = connection.execute(query).scalar()
            failed = query.where(runs.c.failure_kind.is_not(None))
            neighbour_ids[f"{name}_failed"] = connection.execute(failed).scalar()
    return neighbour_ids


def group_rewards(
    store: Store, run: dict[str, Any]
) -> Sequence[tuple[str, float | None, str | None]]:
    """Return `(trace, reward, failure for training)` of every run in a run's group; empty without a group."""
    if run["job_id"] is None or run["group_id"] is None:
        return []
    runs = tables.runs
    query = (
        sa.select(runs.c.trace_id, runs.c.reward, runs.c.failure_kind, runs.c.stop_reason)
        .where(
            runs.c.job_id == run["job_id"],
            runs.c.group_id == run["group_id"],
            runs.c.team_id == run["team_id"],
        )
        .order_by(runs.c.attempt, runs.c.trace_id)
        .limit(MOST_OF_GROUP)
    )
    return [
        (row.trace_id, row.reward, failure_of(row.reward, row.failure_kind, row.stop_reason))
        for row in store.rows(query)
    ]


def _steps(store: Store, query: Query) -> list[tuple[int, Payload]]:
    return [(row.step_id, _read(row.payload)) for row in store.rows(query)]


def _read(payload: bytes) -> Payload:
    try:
        step = exact_json.loads(payload)
    except exact_json.JSONDecodeError:
        return {"error": "The stored payload of this step is not JSON."}
    return step if isinstance(step, dict) else {"extra": {"not_understood": step}}
