"""Journal lines into tables, many at a time. Idempotent: lines that were ingested before change nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, get_args

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from hud import exact_json
from hud.errors import NotFoundError, UsageError
from hud.trace import TOOL_CALLS, TraceStatus, plain
from hud.trace.recorded_time import now_microseconds
from hud.trace.recording.job_purpose import PURPOSES
from hud.trace.recording.journal import Event, decode_events, orphaned_journals, set_aside
from hud.trace.sampled.pictures import Picture
from hud.trace.sampled.token_columns import pack_ids, pack_logprobs
from hud_platform.store import Store, tables
from hud_platform.store.attachments import detach, store_attachment
from hud_platform.store.blobs import Blobs
from hud_platform.store.imported_runs import delete_imported_turns, recorded_here
from hud_platform.store.outcomes import apply_rules
from hud_platform.store.ownership import refuse_foreign
from hud_platform.store.tool_columns import tool_columns

_Row = dict[str, Any]
_logger = logging.getLogger("hud.platform")
_RUN_COLUMNS = [column.name for column in tables.runs.columns]
_RESUMED = (
    *("name", "group_size", "taskset_id", "status", "extra"),
    *("pid", "process_started", "host"),
)
"""Columns of a job that its resumption changes."""
LASTING = ("job_id", "slug", "task", "source", "foreign_id", "may_train")
"""Columns of a run that stay as they were recorded first: they tell which tasks a model was trained on."""
NOT_OURS = (ValueError, KeyError, TypeError, OverflowError, AttributeError)
"""Raised for an event that no recorder of ours wrote, or that a column cannot hold."""
_HOLDS: dict[type[Any], tuple[type, ...]] = {
    sa.LargeBinary: (bytes,),
    sa.Integer: (int,),
    sa.Float: (int, float),
    sa.Boolean: (bool,),
    sa.JSON: (str,),
    tables.Moment: (int,),
    sa.String: (str,),
}
"""Stored values of the columns' types."""


def ingest(store: Store, data: bytes, team: str, *, session: bool = False) -> Ingested:
    """Write a batch of a team's journal lines in one transaction; those that cannot be stored are counted out.

    `session`: the lines are of a human-baseline session of this server, which alone may write runs of a baseline.
    """
    lines = list(decode_events(data))
    events = [event for event in lines if event is not None]
    batch: Batch | None = None
    try:
        batch = Batch.of(store, team, events)
    except NOT_OURS:
        events = [event for event in events if problem_of(store, team, event) is None]
    refused = _write(store, team, events, batch, session=session)
    if len(events) == len(lines) and not refused:
        return Ingested(len(events), [])
    stored = set(map(id, events)) - set(map(id, refused))
    damaged = [number for number, event in enumerate(lines) if id(event) not in stored]
    return Ingested(len(stored), damaged)


def _write(
    store: Store,
    team: str,
    events: list[Event],
    batch: Batch | None = None,
    *,
    session: bool = False,
) -> list[Event]:
    """Write events, as `batch` where they are in one already; returns those that cannot be stored.

    One that the database refuses (too long for its column, too large a number) keeps no other from being stored:
    the halves of what was refused are tried each by itself.
    """
    if not events:
        return []
    if batch is None:
        batch = Batch.of(store, team, events)
    try:
        with store.begin() as connection:
            batch.write(connection, session=session)
    except NotFoundError:
        raise
    except (UsageError, IntegrityError, UnicodeError):
        if len(events) == 1:
            return events
        half = len(events) // 2
        halves = (events[:half], events[half:])
        return [event for part in halves for event in _write(store, team, part, session=session)]
    return []


def problem_of(store: Store, team: str, event: Event) -> Exception | None:
    """Return the reason why an event cannot be stored; None: it can, for all that its columns say."""
    try:
        Batch.of(store, team, [event])
    except NOT_OURS as error:
        return error
    return None


def recover(store: Store, folder: Path) -> int:
    """Ingest the journals of processes of this machine that died; returns how many events they held."""
    events = 0
    for data in orphaned_journals(folder):
        ingested = ingest(store, data, tables.LOCAL_TEAM)
        set_aside(folder, data, ingested.damaged)
        events += ingested.events
    return events


@dataclass(frozen=True)
class Ingested:
    """Result of a batch."""

    events: int
    damaged: list[int]
    """Numbers of the lines that could not be understood, from 0."""


class Batch:
    """Events of one transaction, as rows."""

    def __init__(self, blobs: Blobs, team: str) -> None:
        self.blobs, self.team = blobs, team
        self.jobs: dict[str, _Row] = {}
        self.job_ends: list[_Row] = []
        self.opened: dict[str, _Row] = {}
        self.ended: dict[str, _Row] = {}
        self.steps: list[_Row] = []
        self.samples: list[_Row] = []

    @classmethod
    def of(cls, store: Store, team: str, events: Sequence[Event]) -> Batch:
        """Return events as rows; raises one of `NOT_OURS` where an event is not ours, or its columns cannot hold it."""
        batch = cls(store.blobs, team)
        # Hot path: a run's end says all that its start did.
        ended = {event.identifier for event in events if event.kind == b"E"}
        for event in events:
            if event.kind != b"R" or event.identifier not in ended:
                batch._add(event)
        batch._check()
        return batch

    def _pictures(self, pictures: list[_Row]) -> bytes | None:
        """Store the files of a sample's pictures; return the column that names their blobs."""
        rows = []
        for item in pictures:
            picture = Picture.model_validate(item)
            blob = store_attachment(self.blobs, self.team, picture.data or "")
            rows.append({**picture.model_dump(exclude={"data"}), "blob": blob})
        return exact_json.dumps(rows) if rows else None

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """Return the rows of several batches of one team; of a job or run that several hold, the last."""
        if len(batches) == 1:
            return batches[0]
        both = cls(batches[0].blobs, batches[0].team)
        for batch in batches:
            both.jobs |= batch.jobs
            both.job_ends += batch.job_ends
            both.opened |= batch.opened
            both.ended |= batch.ended
            both.steps += batch.steps
            both.samples += batch.samples
        return both

    def _add(self, event: Event) -> None:
        kind, identifier, step, payload = event
        if exact_json.has_many_containers(payload) or exact_json.is_nested_deep(payload):
            raise ValueError("too many lists and objects, or nested too deep")
        if kind == b"S":
            if not isinstance(exact_json.loads(payload), dict):
                raise TypeError("a step cannot be other than an object")
            detached = detach(self.blobs, self.team, payload)
            self.steps.append({"trace_id": identifier, "step_id": step, "payload": detached})
        elif kind == b"T":
            sample = exact_json.loads(payload)
            pictures = self._pictures(sample.get("pictures") or [])
            self.samples.append({**_sample(identifier, step, sample), "pictures": pictures})
        elif kind == b"R":
            self.opened[identifier] = _run(identifier, self.team, exact_json.loads(payload))
        elif kind == b"E":
            self.ended[identifier] = _run(identifier, self.team, exact_json.loads(payload))
            self.opened.pop(identifier, None)
        elif kind == b"J":
            self.jobs[identifier] = _job(identifier, self.team, exact_json.loads(payload))
        elif kind == b"Z":
            end = exact_json.loads(payload)
            self.job_ends.append({"job": identifier, "status": end["status"], "ended": end["at"]})
        else:
            raise ValueError(f"kind {kind!r}")

    def _check(self) -> None:
        ends = [
            {"id": end["job"], "status": end["status"], "ended_at": end["ended"]}
            for end in self.job_ends
        ]
        _check(tables.jobs, list(self.jobs.values()))
        _check(tables.jobs, ends)
        _check(tables.runs, [*self.opened.values(), *self.ended.values()])
        _check(tables.steps, self.steps)
        _check(tables.samples, self.samples)

    def _leave_out(self, traces: set[str]) -> None:
        """Remove the rows of these runs."""
        if traces:
            self.ended = {key: row for key, row in self.ended.items() if key not in traces}
            self.steps = [row for row in self.steps if row["trace_id"] not in traces]
            self.samples = [row for row in self.samples if row["trace_id"] not in traces]

    def write(self, connection: sa.Connection, *, session: bool = False) -> None:
        """Bring the rows into the tables; `session`: as `ingest` takes it."""
        written = [*self.steps, *self.samples]
        traces = {*self.opened, *self.ended, *(str(row["trace_id"]) for row in written)}
        runs = [*self.opened.values(), *self.ended.values()]
        jobs = {*self.jobs, *(str(end["job"]) for end in self.job_ends)}
        jobs |= {run["job_id"] for run in runs if run["job_id"]}
        refuse_foreign(connection, self.team, jobs, traces, session=session)
        self._leave_out(recorded_here(connection, self.ended))
        delete_imported_turns(connection, self.ended)
        upsert(connection, tables.jobs, list(self.jobs.values()), update=_RESUMED)
        upsert(connection, tables.runs, list(self.opened.values()))
        ended = list(self.ended.values())
        upsert(connection, tables.runs, ended, update=_RUN_COLUMNS[1:], lasting=LASTING)
        note_models(connection, runs)
        upsert(connection, tables.steps, self.steps)
        upsert(connection, tables.samples, self.samples)
        apply_rules(connection, self.ended)
        to_be_indexed(connection, self.team, self.ended)
        if self.job_ends:
            # Microseconds as they are: the column's type would convert a datetime, and these are none.
            ended_at = sa.type_coerce(sa.bindparam("ended"), sa.BigInteger)
            connection.execute(
                sa.update(tables.jobs)
                .where(tables.jobs.c.id == sa.bindparam("job"))
                .values(status=sa.bindparam("status"), ended_at=ended_at),
                self.job_ends,
            )


def to_be_indexed(connection: sa.Connection, team: str, traces: Iterable[str]) -> None:
    """Queue runs for the full-text index (`hud_platform.search.run_index`)."""
    queued = now_microseconds()
    rows = [{"trace_id": trace, "team_id": team, "queued_at": queued} for trace in traces]
    upsert(connection, tables.runs_to_index, rows, update=("queued_at",), conflict=("trace_id",))


def note_models(connection: sa.Connection, runs: Sequence[_Row]) -> None:
    """Note who plays the jobs of these rows of `runs`, so that jobs are found by it."""
    noted = {
        (run["job_id"], run["model"], run.get("checkpoint") or "", run["team_id"])
        for run in runs
        if run.get("job_id") and run.get("model") and len(run["model"]) <= tables.LONGEST_MODEL
    }
    names = ("job_id", "model", "checkpoint", "team_id")
    rows = [dict(zip(names, key, strict=True)) for key in sorted(noted)]
    upsert(connection, tables.job_models, rows)


def upsert(
    connection: sa.Connection,
    table: sa.Table,
    rows: list[_Row],
    update: Sequence[str] = (),
    conflict: Sequence[str] = (),
    lasting: Sequence[str] = (),
) -> None:
    """Insert rows of stored values; where one is there already, take over the columns of `update`, or leave it.

    `conflict`: the columns that tell that it is; default: the primary key. `lasting`: columns of `update` that are taken over only
    where they are NULL so far.
    """
    if not rows:
        return
    if table in (tables.jobs, tables.runs):
        rows = [_clipped(row) for row in rows]
    if connection.dialect.name == "postgresql":
        rows = [_without_nul(row) for row in rows]
    statement, names = _upsert(
        connection.dialect, table, tuple(rows[0]), tuple(update), tuple(conflict), tuple(lasting)
    )
    # Hot path: given dicts, SQLAlchemy would make each row's parameters by way of several others.
    parameters: Any = rows if names is None else list(map(itemgetter(*names), rows))
    connection.exec_driver_sql(statement, parameters)


@lru_cache(256)
def _upsert(
    dialect: sa.Dialect,
    table: sa.Table,
    columns: tuple[str, ...],
    update: tuple[str, ...],
    conflict: tuple[str, ...],
    lasting: tuple[str, ...],
) -> tuple[str, list[str] | None]:
    """Return `upsert`'s SQL, and the order of its columns where the driver's parameters go by position."""
    insert = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
    # Untyped values: everything is in its stored form already.
    raw = sa.table(table.name, *(sa.column(column.name) for column in table.columns))
    statement: Any = insert(raw).values({name: sa.bindparam(name) for name in columns})
    keys = conflict or tuple(column.name for column in table.primary_key)
    if update:
        taken = {name: statement.excluded[name] for name in update if name in columns}
        taken |= {
            name: sa.func.coalesce(raw.c[name], taken[name]) for name in lasting if name in taken
        }
        statement = statement.on_conflict_do_update(index_elements=keys, set_=taken)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    compiled = statement.compile(dialect=dialect)
    return str(compiled), compiled.positiontup


_LONGEST = {
    **dict.fromkeys(("name", "slug", "model", "checkpoint", "stop_reason", "host"), 1_000),
    "error": 100_000,
}
"""Lengths in characters of texts that lists of jobs and runs show."""


def _clipped(row: _Row) -> _Row:
    """Return the row of a job or a run with overlong texts cut: lists show a thousand rows at once."""
    overlong = {
        name: f"{row[name][: longest - 1]}…"
        for name, longest in _LONGEST.items()
        if row.get(name) is not None and len(row[name]) > longest
    }
    return {**row, **overlong} if overlong else row


def _without_nul(row: _Row) -> _Row:
    """PostgreSQL's text holds every character but one, which models do write."""
    return {
        name: value.replace("\x00", "\ufffd") if isinstance(value, str) else value
        for name, value in row.items()
    }


def _check(table: sa.Table, rows: Sequence[_Row]) -> None:
    """Raise `TypeError` or `OverflowError` where a value is not one that its column holds. All rows have the same keys."""
    if not rows:
        return
    columns, names = _columns(table), list(rows[0])
    # Hot path: a column's values at once, not value by value.
    for name, values in zip(names, zip(*map(itemgetter(*names), rows), strict=True), strict=True):
        column, kinds = columns[name], set(map(type, values))
        if not kinds <= column.kinds:
            wrong = min(kind.__name__ for kind in kinds - column.kinds)
            raise TypeError(f"{table.name}.{name} cannot hold a {wrong}")
        if column.bounds is not None:
            least, most = column.bounds
            numbers = [value for value in values if value is not None]
            for number in (min(numbers, default=0), max(numbers, default=0)):
                if not least <= number <= most:
                    raise OverflowError(f"{table.name}.{name} cannot hold {number}")


class _Column(NamedTuple):
    """Values that a column holds."""

    kinds: frozenset[type]
    """Their types; that of None where it may be NULL."""
    bounds: tuple[int, int] | None
    """Least and largest whole number: 32 bits, as PostgreSQL has them, where SQLite would hold more; of times those that can be shown."""


@cache
def _columns(table: sa.Table) -> dict[str, _Column]:
    """Return the values that each of a table's columns holds, by its name."""
    columns = {}
    for column in table.columns:
        kinds = next(kinds for kind, kinds in _HOLDS.items() if isinstance(column.type, kind))
        empty = (type(None),) if column.nullable else ()
        columns[column.name] = _Column(frozenset((*kinds, *empty)), _bounds(column.type))
    return columns


def _bounds(kind: Any) -> tuple[int, int] | None:
    if isinstance(kind, tables.Moment):
        return 0, tables.LATEST
    if isinstance(kind, sa.Integer) and not isinstance(kind, sa.BigInteger):
        return -(2**31), 2**31 - 1
    return None


def _job(identifier: str, team: str, payload: dict[str, Any]) -> dict[str, Any]:
    copied = ("name", "group_size", "pid", "process_started", "host")
    # Journals of earlier versions have none of these.
    extra = {
        "benchmark": payload.get("benchmark"),
        "planned": _planned(payload.get("planned")),
        "taskset": _name(payload.get("taskset")),
        "called_as": _name(payload.get("called_as")),
        "graded_from": _name(payload.get("graded_from")),
        "concurrency": _concurrency(payload.get("concurrency")),
    }
    purpose = payload.get("purpose", "evaluation")
    if purpose not in PURPOSES:
        raise ValueError(f"purpose {purpose!r}")
    return {
        **{name: payload[name] for name in copied},
        "id": identifier,
        "team_id": team,
        "purpose": purpose,
        "called_by": plain(payload["called_by"]) if payload.get("called_by") else None,
        "taskset_id": plain(payload["taskset_id"]) if payload["taskset_id"] else None,
        "status": "running",
        "extra": exact_json.dumps({name: value for name, value in extra.items() if value}).decode(),
        "created_at": payload["at"],
    }


def _concurrency(value: object) -> dict[str, Any] | None:
    """Return the limits in force of a job; raises `TypeError` for anything else."""
    if value is None:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("requests"), dict):
        raise TypeError("concurrency must be an object with requests")
    counts = [value.get("rollouts"), value.get("max_concurrent"), *value["requests"].values()]
    if any(type(count) is not int for count in counts):
        raise TypeError("concurrency holds counts")
    return {
        "rollouts": value["rollouts"],
        "max_concurrent": value["max_concurrent"],
        "held_by": _name(value.get("held_by")),
        "requests": {_name(model): count for model, count in value["requests"].items()},
    }


def _name(value: object) -> str | None:
    """Return a name; raises `TypeError` for anything else."""
    if not (value is None or isinstance(value, str)):
        raise TypeError(f"a name cannot be a {type(value).__name__}")
    return None if value is None else value[: _LONGEST["name"]]


def _planned(value: object) -> int | None:
    """Return a job's number of planned runs; raises `TypeError` or `OverflowError` for anything else."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"planned cannot be a {type(value).__name__}")
    if not 0 <= value < 2**31:
        raise OverflowError(f"planned cannot be {value}")
    return value


_STATUSES = ("running", *get_args(TraceStatus))
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(_RUN_COLUMNS),
    "status": "running",
    **dict.fromkeys(tables.RUN_COUNTS, 0),
}


def _run(identifier: str, team: str, payload: dict[str, Any]) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for name in ("task", "grade", "extra"):
        if payload.get(name) is not None:
            if not isinstance(payload[name], dict):
                raise TypeError(f"{name} cannot be a {type(payload[name]).__name__}")
            if name == "extra":
                counts = tool_columns(payload[name].get(TOOL_CALLS))
            payload[name] = exact_json.dumps(payload[name])
    row = {**_DEFAULTS, **payload, **counts, "trace_id": identifier, "team_id": team}
    if row["status"] not in _STATUSES:
        raise ValueError(f"status {row['status']!r}")
    if row["reward"] is not None and not abs(row["reward"]) <= tables.LARGEST_REWARD:
        raise ValueError(f"reward {row['reward']}")
    if len(row) > len(_DEFAULTS):
        raise KeyError(f"runs has no {min(row.keys() - _DEFAULTS.keys())}")
    return row


def _sample(identifier: str, step: int, payload: dict[str, Any]) -> dict[str, Any]:
    return {
        "trace_id": identifier,
        "step_id": step,
        "extends": payload["extends"],
        "prompt": pack_ids(payload["prompt"]),
        "output": pack_ids(payload["output"]),
        "logprobs": pack_logprobs(payload["logprobs"]),
        "checkpoint": payload["checkpoint"],
        "swaps": exact_json.dumps(payload["swaps"]) if payload["swaps"] else None,
        "temperature": payload["temperature"],
        "excluded": payload.get("excluded"),
    }
