"""A job's runs as a pandas data frame; pandas is optional."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from hud.errors import UsageError
from hud.eval.results.run_summary import RunSummary
from hud.eval.results.tool_failures import tool_failures
from hud.eval.run import Run

_NUMBERS = ("reward", "seconds", "cost_usd")
_COLUMNS = [
    "trace_id",
    *(field.name for field in fields(RunSummary)),
    "status",
    "answer",
    "error",
    "failed_tool_calls",
    "started_at",
]


def data_frame(runs: Sequence[Run]) -> Any:
    """Return a row for each run: its summary, its task's arguments (`args.NAME`), its answer and its error.

    Missing rewards, durations and costs are NaN, which means leave out. A job without runs has all columns but arguments.
    Raises `UsageError` without pandas.
    """
    try:
        import pandas  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise UsageError(
            "job.to_pandas() needs pandas, which is not installed: pip install pandas."
        ) from None
    frame = pandas.DataFrame([_row(run) for run in runs], columns=None if runs else _COLUMNS)
    # A column of None alone has no numeric type, and its mean is an error.
    return frame.astype(dict.fromkeys(_NUMBERS, float))


def _row(run: Run) -> dict[str, Any]:
    calls = tool_failures([run.summary()])
    return {
        "trace_id": run.trace_id,
        **asdict(run.summary()),
        "status": run.trace.status,
        "answer": run.content,
        "error": run.error,
        "tool_calls": calls.calls,
        "failed_tool_calls": calls.failed,
        "started_at": run.started_at,
        **{f"args.{name}": value for name, value in run.task.args.items()},
    }
