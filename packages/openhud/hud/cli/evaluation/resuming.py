"""The job of `hud eval`: a new one, or a resumed one with its runs."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hud.cli.platform_requests import pages
from hud.client import connect, recorder
from hud.errors import UsageError
from hud.eval import Job, RunSummary, Taskset
from hud.eval.results.run_summary import elapsed
from hud.eval.scheduler import plan_missing
from hud.trace import TOOL_CALLS


async def open_job(
    resume: str | None, tasks: Taskset, group: int | None, model: str | None
) -> tuple[Job, list[RunSummary]]:
    """Return a job and its finished runs; a new job has none.

    Raises `NotFoundError` for an unknown job, and `UsageError` for one of other tasks.
    """
    if resume is None:
        name = f"{tasks.name} · {model}" if model else tasks.name
        job = await Job.start(
            name,
            group=group or 1,
            planned=len(tasks) * (group or 1),
            taskset=tasks.name,
            taskset_id=tasks.taskset_id,
            benchmark=tasks.benchmark,
        )
        return job, []
    await recorder().collect()  # What the interrupted process did not bring would be played twice.
    record = await connect().get(f"/v2/jobs/{resume}")
    rows = [row async for row in pages(f"/v2/jobs/{record['id']}/traces")]
    finished = [summary(row) for row in rows if _is_of(row, tasks)]
    if rows and not finished:
        raise UsageError(
            f"Job {resume} has no run of these tasks (its first is {_named(rows[0])}); "
            "give the tasks that it was started with."
        )
    group = group or record["group_size"] or 1
    job = Job(
        id=record["id"],
        name=record["name"],
        group=group,
        # The runs that were not measured stay on record next to those that replace them.
        planned=len(rows) + len(plan_missing(tasks, group, finished)),
        taskset=tasks.name,
        taskset_id=tasks.taskset_id,
        benchmark=tasks.benchmark,
        recorder=recorder(),
    )
    job.recorder.job_started(job)
    return job, [run for run in finished if run.reward is not None]


def _named(row: dict[str, Any]) -> str:
    environment = (row.get("task") or {}).get("env")
    return repr(row["slug"]) if environment is None else f"{row['slug']!r} of {environment!r}"


def _is_of(row: dict[str, Any], tasks: Taskset) -> bool:
    """Return True for a recorded run of one of the tasks: another environment's may have its slug."""
    if row["slug"] not in tasks:
        return False
    task, recorded = tasks[row["slug"]], row.get("task") or {}
    return all(recorded.get(name) in (None, getattr(task, name)) for name in ("env", "id"))


def summary(row: dict[str, Any]) -> RunSummary:
    """Return a recorded run's summary, for statistics and resuming."""
    own = {field.name: row[field.name] for field in fields(RunSummary) if field.name in row}
    calls = (row.get("extra") or {}).get(TOOL_CALLS)  # Runs of earlier versions have none.
    own["seconds"] = elapsed(row["started_at"], row["ended_at"])
    return RunSummary(**own | {"tool_calls": calls if isinstance(calls, dict) else None})
