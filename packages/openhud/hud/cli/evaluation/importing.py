"""`hud import`: runs of other systems and stores as runs of this one, tasks of others as an environment of ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hud.exchange import sources

if TYPE_CHECKING:
    from hud.exchange import ForeignRun, RunSource, Source

FORMATS = sources()


@click.command(
    name="import",
    epilog="Formats: "
    + "; ".join(f"{name}: {source.summary}" for name, source in FORMATS.items())
    + ". More: docs/importing.md, docs/integrations/harbor.md",
)
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--from",
    "name",
    type=click.Choice(list(FORMATS)),
    help="The format (default: recognized by the contents).",
)
@click.option("--job", help="Name of the job of imported runs (default: SOURCE's name).")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Of tasks: the new folder (default: SOURCE's name, with -hud).",
)
def command(source: Path, name: str | None, job: str | None, output: Path | None) -> None:
    """Import SOURCE: recorded runs into the store, or tasks as a new environment.

    An import can be repeated: a run has the same id each time, and takes over what its log has added. What tasks have that
    an environment cannot have is named.
    """
    from hud.cli.platform_requests import run
    from hud.errors import UsageError
    from hud.exchange import RunSource

    name = name or _recognized(source)
    chosen = FORMATS[name]
    if isinstance(chosen, RunSource):
        if output is not None:
            raise UsageError("--output goes with tasks; runs are imported into the store.")
        run(_import_runs(name, chosen, source, job or source.resolve().name))
    else:
        if job is not None:
            raise UsageError("--job goes with runs; these are tasks.")
        _import_tasks(chosen, source, output or Path(f"{source.resolve().name}-hud"))


def _recognized(path: Path) -> str:
    """Return the name of the first format that recognizes a path."""
    from hud.errors import UsageError

    try:
        name = next((name for name, source in FORMATS.items() if source.recognizes(path)), None)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from error
    if name is None:
        kinds = "; ".join(source.summary for source in FORMATS.values())
        raise UsageError(f"{path} is in no format that is imported. There are: {kinds}.")
    return name


async def _import_runs(name: str, source: RunSource, path: Path, job_name: str) -> None:
    from hud.cli.output import console, count
    from hud.client import connect
    from hud.errors import UsageError
    from hud.exchange.foreign_runs import ForeignJob, job_id_of
    from hud.exchange.run_import import import_runs

    job = ForeignJob(id=job_id_of(name, job_name), name=job_name)
    try:
        imported = await import_runs(connect(), name, _read(name, source, path), job)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from error
    if not imported.jobs:
        raise UsageError(f"{path} has no runs ({source.summary}).")
    again = f", {imported.repeated:,} of them again" if imported.repeated else ""
    runs = count(imported.new + imported.repeated, "run")
    console().print(f"{runs} imported from {path} ({name}){again}", markup=False)
    if imported.redacted:
        console().print(f"{count(imported.redacted, 'text')} redacted (hud privacy {name})")
    if imported.without_tokens:
        console().print(
            f"{count(imported.without_tokens, 'run')} without token ids: for supervised training (hud train --from-job) and judging only"
        )
    for of_runs in imported.jobs.values():
        console().print(f"job {of_runs.id[:12]}  {of_runs.name}", markup=False)


def _read(name: str, source: RunSource, path: Path) -> Iterator[ForeignRun]:
    """Yield the runs of a path. Raises `UsageError` for content in another form than the source's."""
    from hud.errors import UsageError

    try:
        yield from source.read(path)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UsageError(
            f"{path} cannot be read as {name}: {type(error).__name__}: {error}. Name another format with --from."
        ) from error


def _import_tasks(source: Source, path: Path, target: Path) -> None:
    from hud.cli.output import console, count
    from hud.errors import UsageError
    from hud.exchange import EnvironmentSource
    from hud.exchange.left_out import lines_of

    assert isinstance(source, EnvironmentSource)
    try:
        written, left_out = source.import_folder(path, target)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be copied: {error.strerror}.") from error
    for folder, number in written.items():
        console().print(f"{count(number, 'task')} written to {folder}")
    for line in lines_of(left_out):
        console().print(line, markup=False)
    for folder in written:
        console().print(f"Their own solutions: hud eval {folder}/env.py {folder}/oracle.py --all")
