"""A job's runs as a pandas data frame; pandas is optional."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hud.errors import UsageError
from hud.eval.results.tool_failures import tool_failures
from hud.eval.run import Run


def data_frame(runs: Sequence[Run]) -> Any:
    """Return a row for each run: its summary, its task's arguments (`args.NAME`), its answer and its error.

    Raises `UsageError` without pandas.
    """
    try:
        import pandas  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise UsageError(
            "job.to_pandas() needs pandas, which is not installed: pip install pandas."
        ) from None
    return pandas.DataFrame([_row(run) for run in runs])


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
