"""The format `jsonl`: trajectories.jsonl, a line for each run, with the pictures in a folder next to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hud.exchange.partial_output import partial_output
from hud.exchange.ports import RecordedRuns, RunExport, Written
from hud.trace.trajectory_export import pictures_of, trajectory_line


async def write_lines(runs: RecordedRuns, output: Path) -> Written:
    """Write `output` and, where the runs have pictures, the folder `STEM.pictures`."""
    folder = output.with_name(f"{output.stem}.pictures")
    written = pictures = 0
    with partial_output(output) as partial, partial.open("wb") as file:
        async for run, trace in runs:
            pictures += write_pictures(trace, folder)
            file.write(trajectory_line(run, trace, runs.job, pictures=folder.name))
            written += 1
    return Written(written, pictures_note(pictures, folder))


def write_pictures(trace: dict[str, Any], folder: Path) -> int:
    """Write the pictures of a trace, and return their number."""
    pictures = pictures_of(trace)
    for picture in pictures:
        path = folder / picture.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture.data)
    return len(pictures)


def pictures_note(number: int, folder: Path) -> tuple[str, ...]:
    """Return the line that says where pictures are; none without pictures."""
    word = "picture" if number == 1 else "pictures"
    return (f"{number:,} {word} written to {folder}",) if number else ()


jsonl = RunExport(
    summary="runs of a job, a line each",
    output="trajectories.jsonl",
    write=write_lines,
)
