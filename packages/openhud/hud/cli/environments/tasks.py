"""`hud tasks`: tasks of recorded runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from hud.cli.platform_requests import ask
from hud.errors import ConflictError


@click.group("tasks")
def command() -> None:
    """Make tasks from recorded runs."""


@command.command("from-trace", epilog="More: docs/outcomes.md")
@click.argument("trace")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="The new folder (default: draft-TRACE).",
)
def from_trace(trace: str, output: Path | None) -> None:
    """Draft a task of the run TRACE: its prompt, and tools that replay its recorded results.

    A person completes it: what the right end is, and the tools where more than a replay is needed.
    """
    from hud.exchange.task_draft import task_draft

    recorded = ask("get", f"/v2/trace/{trace}/full")
    folder = output or Path(f"draft-{recorded['run']['trace_id'][:8]}")
    if folder.exists():
        raise ConflictError(f"{folder} exists; name a new folder with -o.")
    files = task_draft(recorded["run"], recorded["trace"])
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
        click.echo(f"wrote {folder / name}")
    click.echo(f"\nComplete the reward in {folder / 'env.py'}, then:")
    click.echo(f"  hud eval {shlex.quote(str(folder / 'env.py'))} AGENT")
