"""Spans of clients into tables. Steps become what the recorder's journal would have made of them.

Spans come in any order, before or after anything else that is told of their trace, and may come twice.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

import orjson
import sqlalchemy as sa

from hud.errors import UsageError
from hud.platform.store import tables
from hud.platform.store.attachments import detach
from hud.platform.store.ingest import refuse_foreign, upsert
from hud.platform.store.reporting import new_run
from hud.platform.store.store import Store
from hud.trace import plain
from hud.trace.columns import pack_ids, pack_logprobs

STEP_SCHEMA = "hud.step.v1"
_TOKENS = ("prompt_token_ids", "output_token_ids", "output_logprobs")
_Row = dict[str, Any]


def trace_id_of(task_run_id: str) -> str:
    """Return the trace that a client's own id stands for; one that is no UUID gets one, always the same."""
    identifier = plain(task_run_id)
    if len(identifier) == 32 and all(digit in "0123456789abcdef" for digit in identifier):
        return identifier
    return uuid.uuid5(uuid.NAMESPACE_URL, f"hud.task_run:{task_run_id}").hex


def ingest_spans(store: Store, team: str, trace_id: str, spans: list[_Row]) -> int:
    """Write a trace's spans in one transaction; returns how many were new."""
    steps: dict[int, _Row] = {}
    others: dict[str, _Row] = {}
    for span in spans:
        try:
            _sort(span, steps, others)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"This is no span: {type(error).__name__}: {error}.") from error
    rows, samples = [], []
    for number, step in steps.items():
        sample = _sample(trace_id, number, step)
        if sample is not None:
            samples.append(sample)
        payload = detach(store.blobs, team, orjson.dumps(step))
        rows.append({"trace_id": trace_id, "step_id": number, "payload": payload})
    other_rows = [
        {**row, "trace_id": trace_id, "span": detach(store.blobs, team, orjson.dumps(row["span"]))}
        for row in others.values()
    ]
    with store.begin() as connection:
        refuse_foreign(connection, team, [], [trace_id])
        known = _known_steps(connection, trace_id, list(steps))
        upsert(connection, tables.runs, [new_run(team, trace_id)])
        upsert(connection, tables.steps, rows)
        upsert(connection, tables.samples, samples)
        upsert(connection, tables.spans, other_rows)
        new = [step for number, step in steps.items() if number not in known]
        if new:
            _count(connection, trace_id, new)
    return len(new) + len(others)


def _sort(span: _Row, steps: dict[int, _Row], others: dict[str, _Row]) -> None:
    attributes = span.get("attributes") or {}
    schema = attributes.get("hud.schema")
    if schema == STEP_SCHEMA:
        payload = attributes["hud.payload"]
        step = orjson.loads(payload) if isinstance(payload, str) else dict(payload)
        steps[int(step["step_id"])] = step
        return
    span_id = str(span["span_id"])[:32]
    started = span.get("start_time")
    others[span_id] = {
        "span_id": span_id,
        "name": str(span.get("name") or ""),
        "schema": None if schema is None else str(schema),
        "span": span,
        "started_at": _microseconds(started) if started else None,
    }


def _sample(trace_id: str, number: int, step: _Row) -> _Row | None:
    """Take a step's tokens out of it, as a row of their own; what is no text of tokens stays."""
    sample = step.get("sample")
    if not isinstance(sample, dict) or sample.get("prompt_token_ids") is None:
        return None
    outputs, logprobs = sample.get("output_token_ids") or [], sample.get("output_logprobs") or []
    row = {
        "trace_id": trace_id,
        "step_id": number,
        "extends": None,
        "prompt": pack_ids(sample["prompt_token_ids"]),
        "output": pack_ids(outputs),
        "logprobs": pack_logprobs(logprobs),
        "checkpoint": sample.get("checkpoint"),
        "temperature": sample.get("temperature") or 1.0,
    }
    rest = {name: value for name, value in sample.items() if name not in _TOKENS}
    if rest.get("prompt_chunks") is not None:
        step["sample"] = rest
    else:
        del step["sample"]
    return row


def _known_steps(connection: sa.Connection, trace_id: str, numbers: list[int]) -> set[int]:
    steps = tables.steps
    found = connection.execute(
        sa.select(steps.c.step_id).where(steps.c.trace_id == trace_id, steps.c.step_id.in_(numbers))
    )
    return set(found.scalars())


def _count(connection: sa.Connection, trace_id: str, new: list[_Row]) -> None:
    """Add what new steps used to their run's counts."""
    runs = tables.runs
    usages = [step.get("usage") or {} for step in new if step.get("source") == "agent"]

    def total(name: str) -> int:
        return sum(int(usage.get(name) or 0) for usage in usages)

    connection.execute(
        sa.update(runs)
        .where(runs.c.trace_id == trace_id)
        .values(
            step_count=runs.c.step_count + len(new),
            turns=runs.c.turns + len(usages),
            prompt_tokens=runs.c.prompt_tokens + total("prompt_tokens"),
            completion_tokens=runs.c.completion_tokens + total("completion_tokens"),
            cached_tokens=runs.c.cached_tokens + total("cached_tokens"),
        )
    )


def _microseconds(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1e6)
