"""The full-text index of runs: FTS5 on SQLite, a GIN index on PostgreSQL.

Recording a run queues it (`runs_to_index`). A server indexes the queue all the time; a search indexes for a bounded time first, so
that it finds the runs of a store without a server, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from time import monotonic
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud_platform.process.background import Service
from hud_platform.search.run_words import run_texts, tagged_words, texts_of
from hud_platform.store import Store, tables
from hud_platform.store.ingest import upsert

RUNS_AT_ONCE = 200
IDLE_SECONDS = 0.5
"""Pause of a server that has indexed its queue."""
RECORDED = "recorded"
"""Source of a run that was not imported."""
_RUN = (
    *("trace_id", "job_id", "team_id", "slug", "task", "model", "status", "failure_kind"),
    *("error", "content", "reward", "turns", "completion_tokens", "cost_usd", "source"),
)
_TIMES = ("started_at", "ended_at")

words_table = sa.table("run_words", sa.column("rowid"), sa.column("team_id"), sa.column("words"))
"""The index: a virtual table of FTS5, or a table with a tsvector."""


class RunIndexing(Service):
    """Indexing of a server's queue."""

    def __init__(self, store: Store, stopping: asyncio.Event) -> None:
        self._store, self._stopping = store, stopping

    async def work(self) -> None:
        """Index until the server stops."""
        if not await asyncio.to_thread(has_index, self._store):
            return
        while not self._stopping.is_set():
            # A small batch costs recorders as many waits for the database as a full one: let it grow.
            if await asyncio.to_thread(index_some, self._store) < RUNS_AT_ONCE:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), IDLE_SECONDS)


def has_index(store: Store) -> bool:
    """Return False on a SQLite without FTS5."""
    with store.read() as connection:
        return sa.inspect(connection).has_table("run_words")


def index_missing(store: Store, team: str, seconds: float) -> int:
    """Index a team's queue, the newest first, for a time; return the number of runs left."""
    waiting = tables.runs_to_index
    until = monotonic() + seconds
    while index_some(store, team):
        if monotonic() > until:
            count = sa.select(sa.func.count()).where(waiting.c.team_id == team)
            return int(store.value(count))
    return 0


def index_some(store: Store, team: str | None = None) -> int:
    """Index the newest runs of the queue, at most `RUNS_AT_ONCE`; return their number. `team`: of this team only."""
    waiting, runs, jobs = tables.runs_to_index, tables.runs, tables.jobs
    newest = sa.select(waiting).order_by(waiting.c.id.desc()).limit(RUNS_AT_ONCE)
    if team is not None:
        newest = newest.where(waiting.c.team_id == team)
    # Outside of the transaction that writes: recording waits for that one.
    with store.read() as connection:
        queue = connection.execute(newest).all()
        if not queue:
            return 0
        traces = [row.trace_id for row in queue]
        query = (
            sa.select(
                *(runs.c[name] for name in _RUN),
                # Microseconds, not datetimes: only their difference is of interest.
                *(sa.type_coerce(runs.c[name], sa.BigInteger).label(name) for name in _TIMES),
                jobs.c.name.label("job_name"),
            )
            .join(jobs, jobs.c.id == runs.c.job_id, isouter=True)
            .where(runs.c.trace_id.in_(traces))
        )
        rows = {row.trace_id: row for row in connection.execute(query).all()}
        texts = texts_of(connection, traces)
    words = {
        trace: f"{tagged_words(run_texts(texts[trace], row))} {_label_words(row)}"
        for trace, row in rows.items()
    }
    with store.begin() as connection:
        _write(connection, queue, rows, words)
    return len(queue)


def _write(
    connection: sa.Connection, queue: Sequence[Any], rows: dict[str, Any], words: dict[str, str]
) -> None:
    """Replace the index of runs whose entry in the queue is as it was read; others are indexed next time."""
    waiting, indexed = tables.runs_to_index, tables.indexed_runs
    seen = {row.id: row.queued_at for row in queue}
    # On PostgreSQL, another server may index the same rows.
    locked = sa.select(waiting).where(waiting.c.id.in_(seen)).with_for_update(skip_locked=True)
    unchanged = [row for row in connection.execute(locked) if row.queued_at == seen[row.id]]
    done, traces = [row.id for row in unchanged], [row.trace_id for row in unchanged]
    replaced = sa.select(indexed.c.id).where(indexed.c.trace_id.in_(traces))
    earlier = list(connection.execute(replaced).scalars())
    if earlier:
        connection.execute(sa.delete(words_table).where(words_table.c.rowid.in_(earlier)))
        connection.execute(sa.delete(indexed).where(indexed.c.id.in_(earlier)))
    entries = [(row.id, rows[row.trace_id]) for row in unchanged if row.trace_id in rows]
    upsert(connection, indexed, [_indexed(number, run) for number, run in entries])
    if entries:
        connection.execute(
            _insert(connection.dialect.name),
            [
                {"rowid": number, "team_id": run.team_id, "words": words[run.trace_id]}
                for number, run in entries
            ],
        )
    connection.execute(sa.delete(waiting).where(waiting.c.id.in_(done)))


def _insert(dialect: str) -> sa.Insert:
    text: Any = sa.bindparam("words")
    if dialect == "postgresql":
        text = sa.func.to_tsvector(sa.literal_column("'simple'"), text)
    return sa.insert(words_table).values(
        rowid=sa.bindparam("rowid"), team_id=sa.bindparam("team_id"), words=text
    )


def _indexed(number: int, run: Any) -> dict[str, Any]:
    seconds = None
    if run.started_at is not None and run.ended_at is not None:
        seconds = (run.ended_at - run.started_at) / 1e6
    return {
        "id": number,
        "trace_id": run.trace_id,
        "team_id": run.team_id,
        "reward": run.reward,
        "turns": run.turns,
        "tokens": run.completion_tokens,
        "cost": run.cost_usd,
        "seconds": seconds,
    }


def _label_words(run: Any) -> str:
    task = None if run.task is None else exact_json.loads(run.task)
    task = task if isinstance(task, dict) else {}
    labels = (
        _words_of_label("task", run.slug or "", str(task.get("id") or "")),
        _words_of_label("env", str(task.get("env") or "")),
        _words_of_label("model", run.model or ""),
        _words_of_label("job", run.job_id or "", run.job_name or ""),
        _words_of_label("status", run.status),
        _words_of_label("failure", run.failure_kind or ""),
        _words_of_label("source", run.source or RECORDED),
    )
    return " ".join(filter(None, labels))


@lru_cache(1024)
def _words_of_label(field: str, *texts: str) -> str:
    """Return the words of a label; the runs of a job have most of them in common."""
    return tagged_words({field: texts})
