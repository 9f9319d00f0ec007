"""Imports of a file: its format is recognized, and its runs are stored as runs of one job, or of the jobs that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hud.client import Client
from hud.errors import UsageError
from hud.exchange.foreign_runs import ForeignJob, ForeignRun, job_id_of
from hud.exchange.ports import RunSource, Source
from hud.exchange.registry import sources
from hud.exchange.run_import import ImportedRuns, import_runs

_HUB_NAME = re.compile(r"[\w-]+/[\w.-]+(:\w+)?")
_FILES = (".json", ".jsonl", ".ndjson", ".parquet", ".csv", ".txt", ".md", ".py", ".zip", ".gz")


def is_hub_name(text: str) -> bool:
    """Return whether a text that is no path may be the name of a data set on the hub, with a split: `OWNER/NAME:SPLIT`."""
    path = Path(text)
    return (
        _HUB_NAME.fullmatch(text) is not None
        and path.suffix not in _FILES
        and not path.parent.exists()
    )


@dataclass(frozen=True)
class ImportedFile:
    """Runs of a file, and the name of its format."""

    source: str
    runs: ImportedRuns


def source_of(path: Path, name: str | None = None) -> tuple[str, Source]:
    """Return a format with its name: the given one, or the first that recognizes the path. Raises `UsageError` without one."""
    formats = sources()
    if name is not None:
        return name, formats[name]
    try:
        recognized = next((name for name in formats if formats[name].recognizes(path)), None)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from error
    if recognized is None:
        kinds = "; ".join(source.summary for source in formats.values())
        raise UsageError(f"{path} is in no format that is imported. There are: {kinds}.")
    return recognized, formats[recognized]


async def import_file(
    client: Client, path: Path, name: str | None = None, job: str | None = None
) -> ImportedFile:
    """Import the runs of a file or folder; idempotent.

    `name` is the format, by default recognized, and `job` the name of the job, by default the path's. Raises `UsageError` for
    content in another form, for tasks, and without any run.
    """
    name, source = source_of(path, name)
    if not isinstance(source, RunSource):
        raise UsageError(f"{path} has tasks, no runs ({source.summary}): hud import {path}")
    of_runs = _job(name, job, path)
    try:
        imported = await import_runs(client, name, _read(name, source, path), of_runs)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from error
    if not imported.jobs:
        raise UsageError(f"{path} has no runs ({source.summary}).")
    return ImportedFile(name, imported)


def _job(source: str, name: str | None, path: Path) -> ForeignJob:
    name = name or path.absolute().name
    return ForeignJob(id=job_id_of(source, name), name=name)


def _read(name: str, source: RunSource, path: Path) -> Iterator[ForeignRun]:
    """Yield the runs of a path. Raises `UsageError` for content in another form than the source's."""
    try:
        yield from source.read(path)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UsageError(
            f"{path} cannot be read as {name}: {type(error).__name__}: {error}. Name another format with --from."
        ) from error
