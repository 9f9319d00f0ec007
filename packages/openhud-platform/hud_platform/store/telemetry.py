"""Writes clients' spans to tables. Steps get the same rows as those of the recorder's journal.
Spans may arrive in any order, before or after other reports on their trace, and repeatedly. A span that is not a
valid step is stored as received, alongside the steps, and does not affect other spans.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, get_args

import sqlalchemy as sa

from hud import exact_json
from hud.trace import Exclusion, is_id, parse_step, plain, tool_counts
from hud.trace.recorded_time import microseconds
from hud.trace.sampled.token_columns import pack_ids, pack_logprobs
from hud_platform.store import Store, tables
from hud_platform.store.attachments import detach
from hud_platform.store.ingest import to_be_indexed, upsert
from hud_platform.store.ownership import refuse_foreign
from hud_platform.store.queries import in_parts
from hud_platform.store.reporting import new_run
from hud_platform.store.tool_columns import tool_columns

STEP_SCHEMA = "hud.step.v1"
_TOKENS = ("prompt_token_ids", "output_token_ids", "output_logprobs")
_COUNTED = ("prompt_tokens", "completion_tokens", "cached_tokens")
_MOST_TOKENS = 10**9
_MOST_STEPS = 2**31
_Row = dict[str, Any]


@dataclass(frozen=True)
class _Step:
    """Rows of a step."""

    number: int
    payload: bytes
    sample: _Row | None
    counts: dict[str, int] | None
    """Token counts of a turn; None for any other step."""
    tools: dict[str, int] | None
    """Counts of a tool call; None for any other step."""
    span: _Row


def ingest_spans(store: Store, team: str, trace_id: str, spans: list[_Row]) -> int:
    """Write a trace's spans in one transaction; returns the number of new ones."""
    steps: dict[int, _Step] = {}
    others: dict[str, _Row] = {}

    def keep(span: _Row) -> None:
        row = _other(store, team, trace_id, span)
        others.setdefault(row["span_id"], row)

    for span in spans:
        step = _step(store, team, trace_id, span)
        if step is None or steps.setdefault(step.number, step).payload != step.payload:
            keep(span)
    with store.begin() as connection:
        refuse_foreign(connection, team, [], [trace_id])
        upsert(connection, tables.runs, [new_run(team, trace_id)])
        # Serialized for each trace: a concurrent repetition must see the rows of the first upload.
        runs = tables.runs
        run = sa.select(runs.c.trace_id).where(runs.c.trace_id == trace_id)
        connection.execute(run.with_for_update())
        columns = tables.steps.c
        recorded = _known(connection, trace_id, columns.step_id, columns.payload, list(steps))
        for number, payload in recorded.items():
            if steps[number].payload != payload:
                keep(steps[number].span)
        new = [step for number, step in steps.items() if number not in recorded]
        rows = [
            {"trace_id": trace_id, "step_id": step.number, "payload": step.payload} for step in new
        ]
        upsert(connection, tables.steps, rows)
        upsert(connection, tables.samples, [step.sample for step in new if step.sample is not None])
        columns = tables.spans.c
        sent = _known(connection, trace_id, columns.span_id, columns.name, list(others))
        unknown = others.keys() - sent.keys()
        upsert(connection, tables.spans, [others[span_id] for span_id in sorted(unknown)])
        if new:
            _count(connection, trace_id, new)
            to_be_indexed(connection, team, [trace_id])
    return len(new) + len(unknown)


def _step(store: Store, team: str, trace_id: str, span: _Row) -> _Step | None:
    """Return the step of a span; None if the span is not a valid step."""
    attributes = span.get("attributes")
    if not isinstance(attributes, dict) or attributes.get("hud.schema") != STEP_SCHEMA:
        return None
    try:
        payload = attributes["hud.payload"]
        step = _read(payload) if isinstance(payload, str) else dict(payload)
        number = int(step["step_id"])
        if not 0 <= number < _MOST_STEPS:
            return None
        sample, rest = _sample(trace_id, number, step.get("sample"))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if sample is not None:
        step = {name: value for name, value in step.items() if name != "sample"}
        step |= {"sample": rest} if rest else {}
    detached = detach(store.blobs, team, exact_json.dumps(step))
    counts = _counts(step.get("usage")) if step.get("source") == "agent" else None
    tools = tool_counts([parse_step(step)]) if step.get("source") == "tool" else None
    return _Step(number, detached, sample, counts, tools, span)


def _read(payload: str) -> Any:
    """Return the step in a payload. Raises `ValueError` for one that is nested too deep, or no JSON."""
    if exact_json.is_nested_deep(payload.encode()):
        raise ValueError("nested too deep")
    return exact_json.loads(payload)


def _sample(trace_id: str, number: int, sample: Any) -> tuple[_Row | None, _Row | None]:
    """Return a step's tokens as a separate row, and the fields of the sample that stay in the step."""
    if not isinstance(sample, dict) or sample.get("prompt_token_ids") is None:
        return None, None
    temperature, checkpoint = sample.get("temperature"), sample.get("checkpoint")
    excluded = sample.get("excluded")
    measured = isinstance(temperature, int | float) and math.isfinite(temperature)
    row = {
        "trace_id": trace_id,
        "step_id": number,
        "extends": None,
        "prompt": pack_ids(_flat(sample["prompt_token_ids"])),
        "output": pack_ids(_flat(sample.get("output_token_ids") or [])),
        "logprobs": pack_logprobs(_flat(sample.get("output_logprobs") or [])),
        "checkpoint": plain(str(checkpoint)) if is_id(str(checkpoint)) else None,
        "swaps": _swaps(sample.get("swaps")),
        "pictures": None,
        "temperature": float(temperature) if measured and temperature else 1.0,
        "excluded": excluded if excluded in get_args(Exclusion) else None,
    }
    rest = {name: value for name, value in sample.items() if name not in _TOKENS}
    return row, rest if rest.get("prompt_chunks") is not None else None


def _swaps(swaps: Any) -> bytes | None:
    if not isinstance(swaps, list):
        return None
    parsed = [
        [swap[0], plain(str(swap[1])) if is_id(str(swap[1])) else None]
        for swap in swaps
        if isinstance(swap, list) and len(swap) == 2 and isinstance(swap[0], int)
    ]
    return exact_json.dumps(parsed) if parsed else None


def _flat(numbers: Any) -> list[Any]:
    if not isinstance(numbers, list) or not all(
        isinstance(number, int | float) for number in numbers
    ):
        raise TypeError("no list of numbers")
    return numbers


def _counts(usage: Any) -> dict[str, int]:
    """Return the token counts of a turn; invalid counts become 0."""
    recorded = usage if isinstance(usage, dict) else {}
    counts = {name: recorded.get(name) for name in _COUNTED}
    return {
        name: int(count) if isinstance(count, int | float) and 0 <= count <= _MOST_TOKENS else 0
        for name, count in counts.items()
    }


def _other(store: Store, team: str, trace_id: str, span: _Row) -> _Row:
    """Return the row of a span that is stored as received."""
    packed = exact_json.dumps(span)
    attributes = span.get("attributes")
    schema = attributes.get("hud.schema") if isinstance(attributes, dict) else None
    span_id = span.get("span_id")
    return {
        "trace_id": trace_id,
        "span_id": span_id
        if isinstance(span_id, str) and span_id.isalnum() and len(span_id) <= 32
        else hashlib.sha256(packed).hexdigest()[:32],
        "name": str(span.get("name") or ""),
        "schema": None if schema is None else str(schema),
        "span": detach(store.blobs, team, packed),
        "started_at": _microseconds(span.get("start_time")),
    }


def _known(
    connection: sa.Connection,
    trace_id: str,
    key: sa.Column[Any],
    value: sa.Column[Any],
    ids: list[Any],
) -> dict[Any, Any]:
    """Return the values of a trace's rows with a key in `ids`, by key."""
    recorded: dict[Any, Any] = {}
    for some in in_parts(ids):
        query = sa.select(key, value).where(key.table.c.trace_id == trace_id, key.in_(some))
        recorded |= {row[0]: row[1] for row in connection.execute(query)}
    return recorded


def _count(connection: sa.Connection, trace_id: str, new: list[_Step]) -> None:
    """Add the token counts of new steps to those of their run."""
    runs = tables.runs
    turns = [step.counts for step in new if step.counts is not None]
    used = {name: runs.c[name] + sum(counts[name] for counts in turns) for name in _COUNTED}
    tools = [tool_columns(step.tools) for step in new]
    used |= {name: runs.c[name] + sum(part[name] for part in tools) for name in tools[0]}
    connection.execute(
        sa.update(runs)
        .where(runs.c.trace_id == trace_id)
        .values(step_count=runs.c.step_count + len(new), turns=runs.c.turns + len(turns), **used)
    )


def _microseconds(moment: Any) -> int | None:
    try:
        read = datetime.fromisoformat(moment)
    except (TypeError, ValueError):
        return None
    return microseconds(read if read.tzinfo else read.replace(tzinfo=UTC))
