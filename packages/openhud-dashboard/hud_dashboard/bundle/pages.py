"""Pages of a job and of its runs, for a folder or a read-only link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hud.review.shown_run import step_texts
from hud.trace import parse_trace
from hud_dashboard.queries import job_report
from hud_dashboard.rendering import templates
from hud_platform.store import Store, records
from hud_platform.store.job_runs import job_runs
from hud_platform.store.task_labels import run_label, task_labels

LONGEST = 20_000
"""Characters of one text of a step."""
Address = Callable[[str], str]
"""Address of a static file, by its name."""


def job_page(store: Store, job: dict[str, Any], run_address: Address, static: Address) -> str:
    """Return the page of a job (see `records.find_job`). `run_address`: of a run's page, by its trace id."""
    runs = job_runs(store, job["team_id"], job)
    tasks = job_report.tasks(runs)
    first = {task["slug"]: task["runs"][0]["trace_id"] for task in tasks if task["runs"]}
    labels = task_labels(store, job["team_id"], first)
    return templates.get_template("shared_job.html").render(
        job=job,
        numbers=job_report.numbers(runs),
        tasks=[{**task, "label": labels.get(task["slug"], task["slug"])} for task in tasks],
        failures=job_report.failures(runs),
        run_address=run_address,
        static=static,
    )


def run_page(store: Store, run: dict[str, Any], job_address: str, static: Address) -> str:
    """Return the page of a run (see `records.find_run`): its steps as text."""
    trace = parse_trace(records.whole_trace(store, run))
    return templates.get_template("shared_run.html").render(
        run=run,
        label=run_label(run) or "Run",
        steps=[(step.step_id, list(step_texts(step))) for step in trace.steps],
        job_address=job_address,
        static=static,
        longest=LONGEST,
    )
