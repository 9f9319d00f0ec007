"""`hud jobs`: what was evaluated."""

from __future__ import annotations

from typing import Any

import click


@click.command(name="jobs", epilog="One run, step by step: hud trace ID")
@click.argument("job", required=False)
@click.option("-n", "--limit", type=click.IntRange(1), default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(job: str | None, limit: int, as_json: bool) -> None:
    """List the newest jobs, or show JOB and its runs (the start of an id will do)."""
    from hud.cli.running import run

    run(_list(limit, as_json) if job is None else _show(job, limit, as_json))


async def _list(limit: int, as_json: bool) -> None:
    from hud.cli.output import console, number, print_json, table
    from hud.cli.running import pages

    jobs = [job async for job in pages("/v2/jobs", limit)]
    if as_json:
        print_json(jobs)
        return
    if not jobs:
        console().print("No job is recorded yet. Try: hud eval TASKS AGENT")
        return
    shown = table("id", "name", "status", "runs", "failed", "reward", "started")
    for job in jobs:
        started = job["created_at"][:16].replace("T", " ")
        shown.add_row(
            job["id"][:12],
            job["name"],
            job["status"],
            str(job["runs"]),
            str(job["failed"]),
            number(job["reward"]),
            started,
        )
    console().print(shown)


async def _show(reference: str, limit: int, as_json: bool) -> None:
    from hud.cli.output import console, count, number, print_json, table
    from hud.cli.running import pages
    from hud.client import connect

    job = await connect().get(f"/v2/jobs/{reference}")
    runs = [run async for run in pages(f"/v2/jobs/{job['id']}/traces", limit)]
    if as_json:
        print_json({**job, "traces": runs})
        return
    out = console()
    out.print(f"[bold]{job['name']}[/bold]  {job['id']}  {job['status']}")
    out.print(
        f"{count(job['runs'], 'run')}, {job['graded']:,} graded, mean reward {number(job['reward'])}"
    )
    priced = any(run["cost_usd"] is not None for run in runs)
    shown = table("trace", "task", "#", "reward", "steps", "tokens", *["cost"] * priced, "status")
    for run in runs:
        shown.add_row(
            run["id"][:12],
            run["slug"] or "–",
            str(run["attempt"]),
            number(run["reward"]),
            str(run["step_count"]),
            str(run["completion_tokens"]),
            *["–" if run["cost_usd"] is None else f"${run['cost_usd']:.4f}"] * priced,
            _status(run),
        )
    out.print(shown)
    if job["runs"] > len(runs):
        out.print(f"The first {len(runs):,} of {job['runs']:,}; --limit shows more.")
    out.print("Next: hud trace ID · hud export", job["id"][:12])


def _status(run: dict[str, Any]) -> str:
    if run["failure_kind"]:
        return f"{run['failure_kind']}: {(run['error'] or '')[:80]}"
    return str(run["stop_reason"] or run["status"])
