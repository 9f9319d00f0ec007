"""Journal lines into tables, many at a time. Idempotent: lines that were ingested before change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from hud.platform.store import tables
from hud.platform.store.store import Store
from hud.trace.columns import pack_ids, pack_logprobs
from hud.trace.journal import decode_events, orphaned_journals

_RUN_COLUMNS = [column.name for column in tables.runs.columns]


def ingest(store: Store, data: bytes) -> int:
    """Write a batch of journal lines in one transaction; returns how many there were."""
    jobs: dict[str, dict[str, Any]] = {}
    job_ends: list[dict[str, Any]] = []
    opened: dict[str, dict[str, Any]] = {}
    ended: dict[str, dict[str, Any]] = {}
    steps: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    count = 0
    for kind, identifier, step, payload in decode_events(data):
        count += 1
        if kind == b"S":
            steps.append({"trace_id": identifier, "step_id": step, "payload": payload})
        elif kind == b"T":
            samples.append(_sample(identifier, step, orjson.loads(payload)))
        elif kind == b"R":
            opened[identifier] = _run(identifier, orjson.loads(payload))
        elif kind == b"E":
            opened.pop(identifier, None)
            ended[identifier] = _run(identifier, orjson.loads(payload))
        elif kind == b"J":
            jobs[identifier] = _job(identifier, orjson.loads(payload))
        elif kind == b"Z":
            end = orjson.loads(payload)
            job_ends.append({"job": identifier, "status": end["status"], "ended": end["at"]})
    with store.begin() as connection:
        _upsert(
            connection,
            tables.jobs,
            list(jobs.values()),
            update=("status", "pid", "process_started", "host"),
        )
        _upsert(connection, tables.runs, list(opened.values()))
        _upsert(connection, tables.runs, list(ended.values()), update=_RUN_COLUMNS[1:])
        _upsert(connection, tables.steps, steps)
        _upsert(connection, tables.samples, samples)
        if job_ends:
            # Microseconds as they are: the column's type would convert a datetime, and these are none.
            ended_at = sa.type_coerce(sa.bindparam("ended"), sa.BigInteger)
            connection.execute(
                sa.update(tables.jobs)
                .where(tables.jobs.c.id == sa.bindparam("job"))
                .values(status=sa.bindparam("status"), ended_at=ended_at),
                job_ends,
            )
    return count


def recover(store: Store, home: Path) -> int:
    """Ingest the journals of processes that died; returns how many events they held."""
    return sum(ingest(store, data) for _, data in orphaned_journals(home))


def _upsert(
    connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]], update: Any = ()
) -> None:
    """Insert rows; where one is there already, take over the columns of `update`, or leave it."""
    if not rows:
        return
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    # Untyped values: everything is in its stored form already, and bulk inserts skip the types' work.
    raw = sa.table(table.name, *(sa.column(column.name) for column in table.columns))
    statement: Any = insert(raw).values({name: sa.bindparam(name) for name in rows[0]})
    keys = [column.name for column in table.primary_key]
    if update:
        taken = {name: statement.excluded[name] for name in update if name in rows[0]}
        statement = statement.on_conflict_do_update(index_elements=keys, set_=taken)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    connection.execute(statement, rows)


def _job(identifier: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": identifier,
        "name": payload["name"],
        "taskset_id": payload["taskset_id"],
        "group_size": payload["group_size"],
        "status": "running",
        "pid": payload["pid"],
        "process_started": payload["process_started"],
        "host": payload["host"],
        "extra": "{}",
        "created_at": payload["at"],
    }


_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(_RUN_COLUMNS),
    "status": "running",
    "step_count": 0,
    "turns": 0,
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "cached_tokens": 0,
}


def _run(identifier: str, payload: dict[str, Any]) -> dict[str, Any]:
    for name in ("task", "grade", "extra"):
        if payload.get(name) is not None:
            payload[name] = orjson.dumps(payload[name])
    return {**_DEFAULTS, **payload, "trace_id": identifier}


def _sample(identifier: str, step: int, payload: dict[str, Any]) -> dict[str, Any]:
    return {
        "trace_id": identifier,
        "step_id": step,
        "extends": payload["extends"],
        "prompt": pack_ids(payload["prompt"]),
        "output": pack_ids(payload["output"]),
        "logprobs": pack_logprobs(payload["logprobs"]),
        "checkpoint": payload["checkpoint"],
        "temperature": payload["temperature"],
    }
