"""`hud import`: runs of other systems and stores as runs of this one, tasks of others as an environment of ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hud.exchange import sources

if TYPE_CHECKING:
    from hud.exchange import Source

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
    from hud.exchange.file_import import source_of

    name, chosen = source_of(source, name)
    if isinstance(chosen, RunSource):
        if output is not None:
            raise UsageError("--output goes with tasks; runs are imported into the store.")
        run(_import_runs(name, source, job))
    else:
        if job is not None:
            raise UsageError("--job goes with runs; these are tasks.")
        _import_tasks(chosen, source, output or Path(f"{source.resolve().name}-hud"))


async def _import_runs(name: str, path: Path, job: str | None) -> None:
    from hud.cli.output import console, count
    from hud.client import connect
    from hud.exchange.file_import import import_file

    imported = (await import_file(connect(), path, name, job)).runs
    again = f", {imported.repeated:,} of them again" if imported.repeated else ""
    runs = count(imported.new + imported.repeated, "run")
    console().print(f"{runs} imported from {path} ({name}){again}", markup=False)
    if imported.redacted:
        console().print(f"{count(imported.redacted, 'text')} redacted (hud privacy {name})")
    if imported.without_tokens:
        console().print(
            f"{count(imported.without_tokens, 'run')} without token ids: for supervised training (hud train --from) and judging only"
        )
    for of_runs in imported.jobs.values():
        console().print(f"job {of_runs.id[:12]}  {of_runs.name}", markup=False)


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
