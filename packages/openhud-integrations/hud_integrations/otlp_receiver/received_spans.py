"""Spans in the store, and the runs that are made of them.

Spans arrive late, out of order and repeatedly. All of them are stored; each upload makes the runs that it touches anew, of all their
spans.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud.errors import UsageError
from hud.exchange import ForeignJob, ForeignRun
from hud.exchange.foreign_runs import job_id_of
from hud.exchange.redaction import Redaction
from hud.exchange.run_import import ImportedLines
from hud.trace.ids import trace_id_of
from hud.trace.recording.journal import decode_events
from hud_integrations.otlp_receiver.span_runs import runs_of_spans
from hud_integrations.otlp_receiver.spans import Span
from hud_platform.store import Store, tables
from hud_platform.store.attachments import attach, detach, has_attachments
from hud_platform.store.ingest import Batch, to_be_indexed, upsert
from hud_platform.store.ownership import refuse_foreign
from hud_platform.store.queries import in_parts
from hud_platform.store.source_policies import policy_of

SOURCE = "otlp"
MOST_BYTES = 64 << 20
"""Size of the spans of one trace, or of the traces of one conversation: each upload reads all of them."""
_TEXTS = ("name", "attributes", "events", "message")
"""Fields of a span that are redacted."""
_CONVERSATIONS = ("gen_ai.conversation.id", "session.id")
_ALL_TRACES, _SIDE_RUNS = "otel_traces", "otel_side_runs"
"""Keys of a run's `extra`: the traces that it was made of, and its other conversations, which are runs by themselves."""


def receive_spans(store: Store, team: str, spans: Iterable[Span]) -> int:
    """Store spans, and make their runs anew, in one transaction; returns the number of stored spans.

    Spans of a run that this platform recorded itself are left out.
    """
    policy = policy_of(store, team, SOURCE)
    redaction = Redaction(policy["redact"])
    by_trace: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        private = {name: redaction.apply(span[name]) for name in _TEXTS}
        by_trace[span["trace_id"]].append({**span, **private})
    with store.begin() as connection:
        refuse_foreign(connection, team, [], list(by_trace))
        for trace_id in _own_runs(connection, list(by_trace)):
            del by_trace[trace_id]
        received = [span for trace_spans in by_trace.values() for span in trace_spans]
        rows = [_row(store, team, span) for span in received]
        upsert(connection, tables.spans, rows, update=("name", "span", "started_at"))
        _Runs(store, team, connection, may_train=policy["may_train"]).make(list(by_trace))
    return len(received)


def _row(store: Store, team: str, span: Span) -> dict[str, Any]:
    return {
        "trace_id": span["trace_id"],
        "span_id": span["span_id"],
        "name": span["name"],
        "schema": SOURCE,
        "span": detach(store.blobs, team, exact_json.dumps(span)),
        "started_at": min(span["start"] // 1000, tables.LATEST),
    }


def _own_runs(connection: sa.Connection, trace_ids: Sequence[str]) -> list[str]:
    """Return the runs that were recorded here, or imported in another way."""
    runs = tables.runs
    other = sa.or_(runs.c.source.is_(None), runs.c.source != SOURCE)
    listed: list[str] = []
    for some in in_parts(trace_ids):
        query = sa.select(runs.c.trace_id).where(runs.c.trace_id.in_(some), other)
        listed += connection.execute(query).scalars()
    return listed


class _Runs:
    """Runs of one team's spans, in a transaction."""

    def __init__(
        self, store: Store, team: str, connection: sa.Connection, *, may_train: bool
    ) -> None:
        self._store, self._team, self._connection = store, team, connection
        self._may_train = may_train

    def make(self, traces: Sequence[str]) -> None:
        """Make the runs of these traces anew."""
        names: defaultdict[str, set[str]] = defaultdict(set)
        for trace_id in traces:
            names[_name(trace_id, self._spans([trace_id]))].add(trace_id)
        lines, jobs = ImportedLines(), set[str]()
        for name, own in names.items():
            run_id = trace_id_of(name)
            refuse_foreign(self._connection, self._team, [], [run_id])
            if _own_runs(self._connection, [run_id]):
                continue
            earlier = self._extra(run_id)
            all_traces = sorted({*own, *earlier.get(_ALL_TRACES, [])})
            spans = self._spans(all_traces)
            service = next((span["service"] for span in spans if span["service"]), SOURCE)
            job = ForeignJob(id=job_id_of(SOURCE, service), name=service, status="running")
            runs = _with_traces(list(runs_of_spans(name, spans)), all_traces)
            # A trace had a run by its own id as long as its conversation was unknown.
            self._remove({run_id, *all_traces, *earlier.get(_SIDE_RUNS, [])})
            if runs and job.id not in jobs:
                jobs.add(job.id)
                lines.add_job(job)
            for run in runs:
                lines.add_run(replace(run, may_train=self._may_train), job, SOURCE)
        events = [event for event in decode_events(lines.take()) if event is not None]
        if events:
            Batch.of(self._store, self._team, events).write(self._connection)

    def _spans(self, traces: Sequence[str]) -> list[Span]:
        """Return all stored spans of traces. Raises `UsageError` where they are too large together."""
        table, spans, size = tables.spans, [], 0
        for some in in_parts(traces):
            query = sa.select(table.c.span).where(
                table.c.trace_id.in_(some), table.c.schema == SOURCE
            )
            for payload in self._connection.execute(query).scalars():
                size += len(payload)
                if size > MOST_BYTES:
                    raise UsageError(
                        f"The spans of the conversation of the trace {traces[0]!r} have more than {MOST_BYTES >> 20} MiB "
                        "together. Begin another one."
                    )
                spans.append(exact_json.loads(payload))
                if has_attachments(payload):
                    attach(self._store.blobs, self._team, spans[-1])
        return spans

    def _extra(self, run_id: str) -> dict[str, Any]:
        """Return the further data of a run; another upload to it waits until the end of this transaction."""
        runs = tables.runs
        query = sa.select(runs.c.extra).where(runs.c.trace_id == run_id).with_for_update()
        extra = self._connection.execute(query).scalar()
        return exact_json.loads(extra) if extra else {}

    def _remove(self, run_ids: Collection[str]) -> None:
        """Delete runs of spans, with their steps."""
        runs = tables.runs
        for some in in_parts(sorted(run_ids)):
            query = sa.select(runs.c.trace_id).where(
                runs.c.trace_id.in_(some), runs.c.source == SOURCE
            )
            ours = list(self._connection.execute(query).scalars())
            for table in (tables.steps, tables.samples, runs):
                self._connection.execute(sa.delete(table).where(table.c.trace_id.in_(ours)))
            to_be_indexed(self._connection, self._team, ours)  # Out of the search index, too.


def _name(trace_id: str, spans: Iterable[Span]) -> str:
    """Return the name of a trace's run: its conversation, else the trace."""
    ordered = sorted(spans, key=lambda span: (span["start"], span["span_id"]))
    ids = (span["attributes"].get(key) for span in ordered for key in _CONVERSATIONS)
    return next((str(value) for value in ids if value), trace_id)


def _with_traces(runs: list[ForeignRun], traces: Sequence[str]) -> list[ForeignRun]:
    """Return runs, with the traces and the other runs noted in the main one."""
    if not runs:
        return runs
    main = next((run for run in runs if "parent_trace_id" not in (run.extra or {})), runs[0])
    side = [run.trace_id for run in runs if run is not main]
    noted = {_ALL_TRACES: list(traces), **({_SIDE_RUNS: side} if side else {})}
    return [
        replace(run, extra={**(run.extra or {}), **noted}) if run is main else run for run in runs
    ]
