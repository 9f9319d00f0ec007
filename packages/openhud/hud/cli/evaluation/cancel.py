"""`hud cancel`: cancel rollouts on the platform."""

from __future__ import annotations

from typing import Any

import click

from hud.cli.output import console, count, print_json
from hud.cli.platform_requests import run
from hud.client import connect
from hud.errors import UsageError


@click.command("cancel")
@click.argument("job", required=False)
@click.option(
    "-t", "--trace-id", metavar="ID", help="This rollout only, by its id or the id's start."
)
@click.option("-a", "--all", "everything", is_flag=True, help="Every rollout of the team.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    job: str | None, trace_id: str | None, everything: bool, yes: bool, as_json: bool
) -> None:
    """Cancel the unfinished rollouts of JOB on the platform."""
    if (job is not None) + (trace_id is not None) + everything != 1:
        raise UsageError("Say what to cancel: a JOB, --trace-id ID, or --all.")
    if everything and not yes and not as_json and console().is_terminal:
        click.confirm("Cancel every rollout of the team?", abort=True, err=True)
    answer = run(_cancel(job, trace_id))
    if as_json:
        print_json(answer)
    elif "status" in answer:
        done = answer["status"] == "accepted"
        click.echo("Cancelled." if done else "Nothing to cancel: it has ended.")
    else:
        cancelled = answer.get("cancelled", answer.get("total_tasks_cancelled", 0))
        click.echo(f"Cancelled {count(cancelled, 'rollout')}.")


async def _cancel(job: str | None, trace_id: str | None) -> dict[str, Any]:
    client = connect()
    answer: dict[str, Any]
    if trace_id is not None:
        played = await client.get(f"/v2/trace/{trace_id}")  # Also by the start of its id.
        answer = await client.post("/v2/rollouts/cancel", {"trace_id": played["id"]})
    elif job is not None:
        row = await client.get(f"/v2/jobs/{job}")
        answer = await client.post("/v2/rollouts/cancel_job", {"job_id": row["id"]})
    else:
        answer = await client.post("/v2/rollouts/cancel_user_jobs", {})
    return answer
