"""`hud import`: tasks of others as an environment of ours."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="import", epilog="More: docs/integrations/harbor.md")
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The new folder (default: SOURCE's name, with -hud).",
)
def command(source: Path, output: Path | None) -> None:
    """Write an environment and its tasks from SOURCE, a folder with tasks of another system, such as Harbor.

    What they have that an environment cannot have is named.
    """
    from hud.cli.output import console, count
    from hud.errors import UsageError
    from hud.exchange import sources
    from hud.exchange.left_out import lines_of

    target = output or Path(f"{source.resolve().name}-hud")
    importers = sources().values()
    importer = next((candidate for candidate in importers if candidate.recognizes(source)), None)
    if importer is None:
        kinds = "; ".join(candidate.summary for candidate in importers)
        raise UsageError(f"{source} is in no format that is imported. There are: {kinds}.")
    try:
        written, left_out = importer.import_folder(source, target)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be copied: {error.strerror}.") from error
    for folder, number in written.items():
        console().print(f"{count(number, 'task')} written to {folder}")
    for line in lines_of(left_out):
        console().print(line, markup=False)
    for folder in written:
        console().print(f"Their own solutions: hud eval {folder}/env.py {folder}/oracle.py --all")
