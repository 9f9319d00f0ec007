"""`hud export`: a job's runs, or tasks, in the formats of others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hud.exchange import Export, RunExport, TaskExport, Written, exports

FORMATS = exports()
SENT = [name for name, form in FORMATS.items() if isinstance(form, RunExport) and form.send]
"""Formats that a collector takes."""


@click.command(
    name="export",
    epilog="Formats: "
    + "; ".join(f"{name}: {export.summary}" for name, export in FORMATS.items())
    + ". The schema of jsonl: docs/trajectories.md; the others: docs/integrations.",
)
@click.argument("source", metavar="JOB|TASKS")
@click.option(
    "--to",
    "name",
    type=click.Choice(list(FORMATS)),
    default="jsonl",
    show_default=True,
    help="The format.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The file, or the new folder (default: by the format).",
)
@click.option(
    "--endpoint",
    metavar="URL",
    help=f"With --to {' or '.join(SENT)}: send the traces to this collector, http://HOST:4318, in place of a file.",
)
def command(source: str, name: str, output: Path | None, endpoint: str | None) -> None:
    """Write the runs of JOB (messages, token ids, logprobs, states, reward), or TASKS, in another format.

    With --to jsonl, pictures are in a folder next to the file, with the same name. TASKS are a .py, .json or .jsonl file, a
    folder, or the platform's taskset; what has no place in the format is named.
    """
    from hud.cli.platform_requests import run
    from hud.errors import UsageError

    export: Export = FORMATS[name]
    target = output or Path(export.output)
    if export.folder and target.exists():
        raise UsageError(f"{target} exists; name a new folder with -o.")
    if endpoint is not None and (name not in SENT or output is not None):
        raise UsageError(f"--endpoint goes with --to {' or '.join(SENT)}, and without -o.")
    match export:
        case RunExport():
            run(_export_runs(export, source, target, endpoint))
        case TaskExport():
            _export_tasks(export, source, target)


@dataclass(frozen=True)
class _JobRuns:
    """Runs of a job, read from the platform page by page."""

    job: dict[str, Any]

    async def __aiter__(self) -> AsyncIterator[tuple[dict[str, Any], dict[str, Any]]]:
        from hud.cli.platform_requests import pages
        from hud.client import connect
        from hud.client.recorded_traces import full_traces

        trace_ids = [run["id"] async for run in pages(f"/v2/jobs/{self.job['id']}/traces")]
        async for recorded in full_traces(connect(), trace_ids):
            yield recorded["run"], recorded["trace"]


async def _export_runs(
    export: RunExport, reference: str, output: Path, endpoint: str | None
) -> None:
    from hud.cli.output import console, count
    from hud.cli.platform_requests import recorded_job

    job = await recorded_job(reference)
    written: Written
    if endpoint is not None and export.send is not None:
        written = await export.send(_JobRuns(job), endpoint)
        done = f"sent to {endpoint}"
    else:
        with _named_output(output):
            written = await export.write(_JobRuns(job), output)
        done = f"written to {output}"
    console().print(f"{count(written.runs, 'run')} of {job['name']} {done}")
    for note in written.notes:
        console().print(note)


def _export_tasks(export: TaskExport, source: str, output: Path) -> None:
    """Write tasks, and print what was left out, by name."""
    from hud.cli.evaluation.task_source import task_source
    from hud.cli.output import console, count
    from hud.exchange.left_out import lines_of

    tasks = task_source(source, None, None).tasks
    with _named_output(output):
        written, left_out = export.write(tasks, output)
    console().print(f"{count(written, 'task')} of {tasks.name} written to {output}")
    for line in lines_of(left_out):
        console().print(line, markup=False)


@contextmanager
def _named_output(output: Path) -> Iterator[None]:
    """Raise `UsageError` with the output's path in place of an `OSError`."""
    from hud.errors import UsageError

    try:
        yield
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from error
