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
    """Write the runs of JOB, one per line: messages, token ids, logprobs, states, reward.

    Pictures are written to a folder next to the file, with the same name.
    """
    from hud.cli.platform_requests import run

    run(_export(job, output))


async def _export(reference: str, output: Path) -> None:
    from hud.cli.output import console, count
    from hud.cli.platform_requests import pages
    from hud.client import connect
    from hud.errors import UsageError
    from hud.trace.trajectory_export import pictures_of, trajectory_line

    job = await connect().get(f"/v2/jobs/{reference}")
    written = shown = 0
    beside = output.with_name(f"{output.stem}.pictures")
    # Written to a temporary file and renamed, so that no partial file is visible.
    partial = output.with_name(output.name + ".partial")
    try:
        with partial.open("wb") as file:
            async for run in pages(f"/v2/jobs/{job['id']}/traces"):
                recorded = await connect().get(f"/v2/trace/{run['id']}/full")
                run_row, trace = recorded["run"], recorded["trace"]
                for picture in pictures_of(trace):
                    place = beside / picture.path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(picture.data)
                    shown += 1
                file.write(trajectory_line(run_row, trace, pictures=beside.name))
                written += 1
        partial.replace(output)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from error
    finally:
        partial.unlink(missing_ok=True)
    console().print(f"{count(written, 'run')} of {job['name']} written to {output}")
    if shown:
        console().print(f"{count(shown, 'picture')} written to {beside}")
