"""`hud export`: a job's runs as trajectories.jsonl, or as a dataset's folder."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click


@click.command(name="export", epilog="The schema: docs/trajectories.md")
@click.argument("job")
@click.option(
    "--to",
    "form",
    type=click.Choice(["jsonl", "hf"]),
    default="jsonl",
    show_default=True,
    help="jsonl: one file; hf: a folder that load_dataset of Hugging Face datasets reads.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The file (default: trajectories.jsonl), or the new folder (default: trajectories).",
)
def command(job: str, form: str, output: Path | None) -> None:
    """Write the runs of JOB: messages, token ids, logprobs, states, reward.

    With --to jsonl they are the lines of a file, and pictures are in a folder next to it, with the same name. With --to hf they
    are the rows of a dataset, with pictures and a card.
    """
    from hud.cli.platform_requests import run
    from hud.errors import UsageError

    if form == "hf":
        folder = output or Path("trajectories")
        if folder.exists():
            raise UsageError(f"{folder} exists; name a new folder with -o.")
        run(_dataset(job, folder))
    else:
        run(_file(job, output or Path("trajectories.jsonl")))


async def _file(reference: str, output: Path) -> None:
    from hud.cli.platform_requests import recorded_job
    from hud.errors import UsageError
    from hud.trace.trajectory_export import trajectory_line

    job = await recorded_job(reference)
    written = shown = 0
    beside = output.with_name(f"{output.stem}.pictures")
    # Written to a temporary file and renamed, so that no partial file is visible.
    partial = output.with_name(output.name + ".partial")
    try:
        with partial.open("wb") as file:
            async for run_row, trace in _runs(job["id"]):
                shown += _write_pictures(trace, beside)
                file.write(trajectory_line(run_row, trace, pictures=beside.name))
                written += 1
        partial.replace(output)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from error
    finally:
        partial.unlink(missing_ok=True)
    _say(written, job, output, shown, beside)


async def _dataset(reference: str, output: Path) -> None:
    import orjson

    from hud.cli.output import console
    from hud.cli.platform_requests import recorded_job
    from hud.errors import UsageError
    from hud.integrations.datasets import PICTURES, DatasetFolder
    from hud.trace.trajectory_export import trajectory_line

    job = await recorded_job(reference)
    shown = 0
    partial = output.with_name(output.name + ".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        dataset = DatasetFolder(partial)
        async for run_row, trace in _runs(job["id"]):
            shown += _write_pictures(trace, partial / PICTURES)
            dataset.add(orjson.loads(trajectory_line(run_row, trace, pictures=PICTURES)))
        dataset.close(job)
        partial.replace(output)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _say(dataset.rows, job, output, shown, output / PICTURES)
    console().print(f'In Python: datasets.load_dataset("{output}")')


async def _runs(job_id: str) -> AsyncIterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the record and the trace of each run."""
    from hud.cli.platform_requests import pages
    from hud.client import connect

    async for run in pages(f"/v2/jobs/{job_id}/traces"):
        recorded = await connect().get(f"/v2/trace/{run['id']}/full")
        yield recorded["run"], recorded["trace"]


def _write_pictures(trace: dict[str, Any], folder: Path) -> int:
    """Write the pictures of a trace, and return their number."""
    from hud.trace.trajectory_export import pictures_of

    found = pictures_of(trace)
    for picture in found:
        place = folder / picture.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(picture.data)
    return len(found)


def _say(written: int, job: dict[str, Any], output: Path, shown: int, pictures: Path) -> None:
    from hud.cli.output import console, count

    console().print(f"{count(written, 'run')} of {job['name']} written to {output}")
    if shown:
        console().print(f"{count(shown, 'picture')} written to {pictures}")
