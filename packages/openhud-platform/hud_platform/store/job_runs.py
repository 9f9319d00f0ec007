"""Short records of a job's runs for its page, without grades, answers and steps."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from hud.eval.results.run_summary import RunSummary
from hud.trace.recorded_time import seconds_between
from hud_platform.store import Store, tables
from hud_platform.store.job_status import INTERRUPTED
from hud_platform.store.queries import as_dict
from hud_platform.store.task_labels import NO_TASK
from hud_platform.store.tool_columns import tool_counts_of

MOST_ERROR = 600
"""Maximum length of an error in a short record; the trace has the full text."""
_COLUMNS = (
    "trace_id",
    "slug",
    "group_id",
    "attempt",
    "status",
    "reward",
    "failure_kind",
    "stop_reason",
    "model",
    "checkpoint",
    "turns",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "tool_calls",
    "tool_errors",
    "tool_time_outs",
    "cost_usd",
    "started_at",
    "ended_at",
)


def job_runs(store: Store, team: str, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the runs of `job` (see `records.find_job`) in the order of their starts. Waiting ones have status `queued`."""
    runs, played = tables.runs, tables.rollouts
    query = (
        sa.select(
            *(runs.c[name] for name in _COLUMNS),
            sa.func.substr(runs.c.error, 1, MOST_ERROR).label("error"),
            played.c.status.label("queue"),
        )
        .join(played, played.c.trace_id == runs.c.trace_id, isouter=True)
        .where(runs.c.job_id == job["id"], runs.c.team_id == team)
        .order_by(runs.c.started_at, runs.c.trace_id)
    )
    return [_run(row, job["status"] != "running") for row in store.rows(query)]


def summary(run: dict[str, Any]) -> RunSummary:
    """Return the summary of a run of `job_runs` for statistics."""
    own = {field.name: run[field.name] for field in fields(RunSummary) if field.name in run}
    return RunSummary(**own | {"tool_calls": tool_counts_of(run)})


def _run(row: sa.Row[Any], over: bool) -> dict[str, Any]:
    run = as_dict(row)
    queue = run.pop("queue")
    run["slug"] = row.slug or NO_TASK
    run["seconds"] = seconds_between(row.started_at, row.ended_at)
    if row.status == "running" and over:
        run |= INTERRUPTED
    elif row.status == "running" and queue == "queued":
        run["status"] = "queued"
    for name in ("started_at", "ended_at"):
        run[name] = None if run[name] is None else run[name].isoformat()
    return run
