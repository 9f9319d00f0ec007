"""The source `langfuse`: traces with their observations, or observations with their traces' ids, as Langfuse exports them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hud import exact_json
from hud.exchange import ForeignRun, RunSource
from hud.trace.steps import Usage
from hud_integrations.sources.chat_messages import read_messages
from hud_integrations.sources.conversations import ModelCall
from hud_integrations.sources.json_lines import leading_rows, rows_of, time_of
from hud_integrations.sources.openai_logs import answer_of
from hud_integrations.sources.traced_calls import reward_of, runs_of_trace

_Row = dict[str, Any]


def is_export(path: Path) -> bool:
    """Return whether the first rows of a file are traces or observations of Langfuse."""
    rows = leading_rows(path)
    return bool(rows) and all("observations" in row or _is_observation(row) for row in rows)


def read_export(path: Path) -> Iterator[ForeignRun]:
    """Yield a run for each trace of a file, and one for each further conversation in it."""
    by_trace: dict[str, list[_Row]] = defaultdict(list)
    for row in rows_of(path):
        if _is_observation(row):
            by_trace[str(_named(row, "traceId", "trace_id"))].append(row)
        else:
            yield from _runs(row, row.get("observations") or [])
    for trace_id, observations in by_trace.items():
        yield from _runs({"id": trace_id}, observations)


def _runs(trace: _Row, observations: list[Any]) -> Iterator[ForeignRun]:
    rows = [row for row in observations if isinstance(row, dict)]
    models = [row for row in rows if row.get("type") in ("GENERATION", "generation")]
    reward, grade = reward_of([row for row in trace.get("scores") or [] if isinstance(row, dict)])
    extra = {
        name: trace[name] for name in ("sessionId", "userId", "tags", "release") if trace.get(name)
    }
    yield from runs_of_trace(
        f"langfuse:{trace['id']}",
        [_call(row) for row in models or [trace]],
        slug=trace.get("name"),
        reward=reward,
        grade=grade,
        extra=extra,
    )


def _call(row: _Row) -> ModelCall:
    request, answer = _parsed(row.get("input")), _parsed(row.get("output"))
    message, reason = answer_of(answer)
    failed = row.get("level") == "ERROR"
    return ModelCall(
        id=str(row["id"]),
        messages=read_messages(request),
        answer=message or {"role": "assistant", "content": None},
        model=row.get("model"),
        usage=_usage(row),
        finish_reason=reason,
        started_at=time_of(_named(row, "startTime", "start_time", "timestamp")),
        ended_at=time_of(_named(row, "endTime", "end_time")),
        error=(_named(row, "statusMessage", "status_message") or "error") if failed else None,
    )


def _usage(row: _Row) -> Usage | None:
    usage = _parsed(_named(row, "usageDetails", "usage_details", "usage"))
    if not isinstance(usage, dict) or not usage:
        return None
    prompt, completion = (
        _named(usage, "input", "promptTokens"),
        _named(usage, "output", "completionTokens"),
    )
    cost = _named(row, "calculatedTotalCost", "totalCost", "total_cost")
    return Usage(
        prompt_tokens=prompt or 0,
        completion_tokens=completion or 0,
        cached_tokens=usage.get("input_cached_tokens") or 0,
        cost_usd=float(cost) if isinstance(cost, int | float) else None,
    )


def _is_observation(row: _Row) -> bool:
    return _named(row, "traceId", "trace_id") is not None and row.get("type") in (
        *("GENERATION", "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN"),
    )


def _parsed(value: Any) -> Any:
    """Return a value; exports of tables have JSON as text."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return exact_json.loads(value)
        except exact_json.JSONDecodeError:
            return value
    return value


def _named(row: _Row, *names: str) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


langfuse = RunSource(
    summary="traces or observations that Langfuse exports",
    recognizes=is_export,
    read=read_export,
)
