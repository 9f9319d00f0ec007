"""`hud export`: a job's runs as trajectories.jsonl."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="export", epilog="The schema: docs/trajectories.md")
@click.argument("job")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("trajectories.jsonl"),
    show_default=True,
)
def command(job: str, output: Path) -> None:
    """Write the runs of JOB, one a line: messages, token ids, logprobs, reward."""
    from hud.cli.running import run

    run(_export(job, output))


async def _export(reference: str, output: Path) -> None:
    from hud.cli.output import console, count
    from hud.cli.running import pages
    from hud.client import connect
    from hud.errors import UsageError
    from hud.trace.export import trajectory_line

    job = await connect().get(f"/v2/jobs/{reference}")
    written = 0
    # Beside its place, then moved there: a reader never sees half a file.
    partial = output.with_name(output.name + ".partial")
    try:
        with partial.open("wb") as file:
            async for run in pages(f"/v2/jobs/{job['id']}/traces"):
                recorded = await connect().get(f"/v2/trace/{run['id']}/full")
                file.write(trajectory_line(recorded["run"], recorded["trace"]))
                written += 1
        partial.replace(output)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from error
    finally:
        partial.unlink(missing_ok=True)
    console().print(f"{count(written, 'run')} of {job['name']} written to {output}")
