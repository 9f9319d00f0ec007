"""Page of one job: numbers, heat map of tasks, failures, and actions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import Response
from fastapi.responses import StreamingResponse

from hud.errors import UsageError
from hud.trace.trajectory_export import trajectory_line
from hud_dashboard.events import Following, Revision
from hud_dashboard.page import Data, Offset, Pages, paged, see
from hud_dashboard.queries import job_listing, job_report
from hud_dashboard.queries.subject_labels import labels_of
from hud_platform.access.shared_jobs import SharedJobs
from hud_platform.dependencies import LinksPart, StorePart, Team, Who
from hud_platform.rollouts.hosted_jobs import HostedJobs
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.store import Store, records
from hud_platform.store.job_runs import job_runs
from hud_platform.store.task_labels import task_labels
from hud_platform.training.training_jobs import TrainingJobs

router = Pages()
TASKS_PER_PAGE = 100
RUNS_AT_ONCE = 100
"""Number of runs read at a time by an export."""


@router.page("/jobs/{job_id}", "job.html")
def job(
    store: StorePart,
    team: Team,
    who: Who,
    links: LinksPart,
    job_id: str,
    sort: str = "position",
    show: str | None = None,
    task: str | None = None,
    offset: Offset = 0,
) -> Data:
    """One job, by id or a unique start of it."""
    row = records.find_job(store, team, job_id)
    runs = job_runs(store, team, row)
    every = job_report.tasks(runs)
    arranged = job_report.arranged(every, sort, show or None)
    shown = arranged[offset : offset + TASKS_PER_PAGE]
    chosen = next((task_row for task_row in every if task_row["slug"] == task), None)
    labelled(store, team, shown if chosen is None else [*shown, chosen])
    numbers = job_report.numbers(runs)
    hosted = HostedJobs(store, team).standing(row["id"])
    return {
        "job": row,
        "numbers": numbers,
        "registered": records.registered_models(store, team, numbers["models"]),
        "percentile": job_report.percentile(row["benchmark"], runs),
        "distribution": job_report.distribution(runs),
        "tasks": shown,
        **paged(len(arranged), TASKS_PER_PAGE, offset),
        "all_tasks": len(every),
        "signals": {
            name: sum(task_row["signal"] == name for task_row in every)
            for name in ("never", "always", "some")
        },
        "failed_tasks": sum(task_row["failed"] > 0 for task_row in every),
        "failures": job_report.failures(runs),
        "chosen": chosen,
        "hosted": hosted,
        "labels": labels_of(store, team, "job", row["id"]),
        # Whoever holds a link reads the job without a key: only for those who may make one.
        "links": SharedJobs(store, links).of_job(team, row["id"]) if who.may("run") else [],
        "training_run": TrainingJobs(store, team).run_of(row),
        "others": job_listing.jobs_like(store, team, row),
        "sort": sort,
        "show": show,
        "revision": job_listing.jobs_revision(store, team, [row["id"]]),
    }


def labelled(store: Store, team: str, tasks: list[dict[str, Any]]) -> None:
    """Add the display name of each task, `label`."""
    labels = task_labels(
        store, team, {task["slug"]: task["runs"][0]["trace_id"] for task in tasks if task["runs"]}
    )
    for task in tasks:
        task["label"] = labels.get(task["slug"], task["slug"])


@router.get("/jobs/{job_id}/trajectories.jsonl")
def export(store: StorePart, team: Team, job_id: str) -> Response:
    """The job's runs in the format of `hud export`: one run a line, with messages, token ids, logprobs and reward."""
    row = records.find_job(store, team, job_id)

    def lines() -> Iterator[bytes]:
        offset, total = 0, 1
        while offset < total:
            runs, total = records.runs_page(store, row, RUNS_AT_ONCE, offset)
            offset += RUNS_AT_ONCE
            for run in runs:
                yield trajectory_line(run, records.whole_trace(store, run), row)

    name = f"trajectories-{row['id'][:12]}.jsonl"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


@router.events("/events/jobs/{job_id}")
def job_events(store: StorePart, team: Team, job_id: str) -> Following:
    """Event stream of a job's changes, until its end."""
    row_id = records.find_job(store, team, job_id)["id"]

    def read() -> Revision:
        value = job_listing.jobs_revision(store, team, [row_id])
        return Revision(value, over=records.find_job(store, team, row_id)["status"] != "running")

    return ("job", team, row_id), read


@router.action("/jobs/{job_id}/cancel", "run")
def cancel(store: StorePart, team: Team, job_id: str) -> Response:
    """Cancel the open rollouts of a job that the platform plays."""
    row = records.find_job(store, team, job_id)
    if not Rollouts(store).cancel(team, job_id=row["id"]):
        raise UsageError(
            "This job has no rollout to cancel here; stop rollouts of another process there, with Ctrl-C."
        )
    return see(f"/jobs/{row['id']}")


@router.action("/jobs/{job_id}/resume", "run")
def resume(store: StorePart, team: Team, job_id: str) -> Response:
    """Play the rollouts of a job again that were not measured."""
    row = records.find_job(store, team, job_id)
    if not HostedJobs(store, team).resume(row["id"]):
        raise UsageError(
            "Every rollout that the platform played for this job was measured, or is still open."
        )
    return see(f"/jobs/{row['id']}")


@router.action("/jobs/{job_id}/rerun", "run")
def rerun(store: StorePart, who: Who, job_id: str) -> Response:
    """Play a job again, as a new one."""
    row = records.find_job(store, who.team_id, job_id)
    new = HostedJobs(store, who.team_id).repeat(row, who.key_id)
    return see(f"/jobs/{new}")
