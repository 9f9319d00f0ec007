"""`hud jobs`: recorded evaluations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click


@click.command(name="jobs", epilog="One run, step by step: hud trace ID")
@click.argument("job", required=False)
@click.option("-n", "--limit", type=click.IntRange(1), default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(job: str | None, limit: int, as_json: bool) -> None:
    """List the newest jobs, or show JOB and its runs (by an id or its start)."""
    from hud.cli.platform_requests import run

    run(_list(limit, as_json) if job is None else _show(job, limit, as_json))


async def _list(limit: int, as_json: bool) -> None:
    from hud.cli.output import console, lines_of, number, print_json
    from hud.cli.platform_requests import pages

    jobs = [job async for job in pages("/v2/jobs", limit)]
    if as_json:
        print_json(jobs)
        return
    if not jobs:
        console().print("No job is recorded yet. Try: hud eval TASKS AGENT")
        return
    # Without the year, if all are of this year.
    year = datetime.now(UTC).strftime("%Y-")
    since = len(year) if all(job["created_at"].startswith(year) for job in jobs) else 0
    rows = [
        [
            job["id"][:12],
            _title(job),
            job["status"],
            _progress(job),
            f"{job['failed']:,}",
            number(job["reward"]),
            job["created_at"][since:16].replace("T", " "),
        ]
        for job in jobs
    ]
    names = ["id", "name", "status", "runs", "failed", "reward", "started"]
    left = ["id", "name", "status", "started"]
    for line in lines_of(names, rows, left=left, shrinks="name", wraps=True):
        console().print(line, markup=False)


async def _show(reference: str, limit: int, as_json: bool) -> None:
    from hud.benchmarks.baseline import baseline_score
    from hud.cli.evaluation.report import failure_lines, percentile
    from hud.cli.evaluation.resuming import summary
    from hud.cli.output import console, count, print_json
    from hud.cli.platform_requests import pages, recorded_job
    from hud.eval.results.failure_causes import FailedRun
    from hud.eval.results.intervals import with_interval
    from hud.eval.results.tool_failures import tool_failures

    job = await recorded_job(reference)
    runs = [run async for run in pages(f"/v2/jobs/{job['id']}/traces", limit)]
    if as_json:
        print_json({**job, "traces": runs})
        return
    out = console()
    out.print(f"{_title(job)}  {job['id']}  {job['status']}", markup=False)
    out.print(
        f"{_progress(job)} {'run' if job['runs'] == 1 else 'runs'}, {job['graded']:,} graded, mean reward "
        f"{with_interval(job['reward'], job['low'], job['high'])}",
        markup=False,
    )
    scored = baseline_score(job["benchmark"], [summary(run) for run in runs])
    if scored is not None and job["runs"] == len(runs):
        out.print(" ".join(percentile(scored)), markup=False)
    for line in _table(runs):
        out.print(line, markup=False)
    failed = [
        FailedRun(run["failure_kind"], run["error"], run["slug"] or "", run["id"])
        for run in runs
        if run["failure_kind"]
    ]
    calls = tool_failures([summary(run) for run in runs]).sentence()
    if job["runs"] > len(runs):
        # What follows is counted over these runs alone.
        counted = " Among these:" if failed or calls is not None else ""
        out.print(f"The first {len(runs):,} of {job['runs']:,} runs; --limit shows more.{counted}")
    if failed:
        out.print(f"Failed: {len(failed):,} of {count(len(runs), 'run')}.")
    for line in failure_lines(failed):
        out.print(line, markup=False)
    if calls is not None:
        out.print(calls, markup=False)
    if runs:
        out.print(f"Next: hud trace {runs[0]['id'][:12]} · hud export {job['id'][:12]}")


def _title(job: dict[str, Any]) -> str:
    """Return a job's title: its environment and purpose. Servers of earlier versions say its name alone."""
    return str(job.get("title", job["name"]))


def _progress(job: dict[str, Any]) -> str:
    """Return a job's number of runs, of which `k of n` are over."""
    over, planned = job.get("over", job["runs"]), job.get("planned", job["runs"])
    if over < planned:  # Servers of earlier versions say neither.
        return f"{over:,} of {planned:,}"
    return f"{job['runs']:,}"


def _table(runs: list[dict[str, Any]]) -> list[str]:
    from hud.cli.output import console, lines_of

    priced = any(run["cost_usd"] is not None for run in runs)
    names = ["trace", "task", "#", "reward", "steps", "tokens", "time", *["cost"] * priced, "end"]
    rows = [_cells(run, None, priced) for run in runs]
    lines = lines_of(names, rows, left=["trace", "task", "end"], shrinks="task")
    if any("…" in line for line in lines):  # Too long with argument names.
        rows = [_cells(run, console().width // 4, priced) for run in runs]
        lines = lines_of(names, rows, left=["trace", "task", "end"], shrinks="task")
    return lines


def run_label(run: dict[str, Any], most: int | None = None) -> str:
    """Return the label of a recorded run's task: its template and arguments, of at most `most` characters."""
    from hud.environment.templates.task import task_label
    from hud.environment.templates.task_identity import equal_args_of

    task = run["task"] or {}
    slug, args = run["slug"] or "–", task.get("args") or {}
    return task_label(slug, task.get("id") or "", args, equal_args_of(task), most)


def _cells(run: dict[str, Any], most: int | None, priced: bool) -> list[str]:
    from hud.cli.output import number, seconds
    from hud.eval.results.run_summary import elapsed

    return [
        run["id"][:12],
        run_label(run, most),
        str(run["attempt"]),
        number(run["reward"]),
        f"{run['step_count']:,}",
        f"{run['completion_tokens']:,}",
        seconds(elapsed(run["started_at"], run["ended_at"])),
        *["–" if run["cost_usd"] is None else f"${run['cost_usd']:.4f}"] * priced,
        run["failure_kind"] or str(run["stop_reason"] or run["status"]),
    ]
