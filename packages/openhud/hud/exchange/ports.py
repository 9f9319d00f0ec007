"""Ports of foreign formats: `RunExport` and `TaskExport` write, `RunSource` and `EnvironmentSource` read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hud.exchange.foreign_runs import ForeignRun
from hud.exchange.left_out import LeftOut

if TYPE_CHECKING:
    from hud.eval import Taskset


class RecordedRuns(Protocol):
    """The runs of a recorded job, read one by one."""

    @property
    def job(self) -> Mapping[str, Any]:
        """Record of the job, with `id` and `name`."""
        ...

    def __aiter__(self) -> AsyncIterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield each run's record and its trace, as the platform returns them."""
        ...


@dataclass(frozen=True)
class Written:
    """Result of a write."""

    runs: int
    notes: tuple[str, ...] = ()
    """Further lines for the user, such as how the output is loaded."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """A format that `hud export` writes."""

    summary: str
    """Contents, in the help of `hud export`."""
    output: str
    """Default path of the output."""
    folder: bool = False
    """True if the output is a new folder."""


@dataclass(frozen=True, kw_only=True)
class RunExport(Export):
    """A format of recorded runs."""

    write: Callable[[RecordedRuns, Path], Awaitable[Written]]
    """Write runs to a path. Raises `OSError` where it cannot be written, and `UsageError` for a path or a package that will not do.

    An output that is left unfinished is removed.
    """
    send: Callable[[RecordedRuns, str], Awaitable[Written]] | None = None
    """Send runs to a collector's address in place of a file; raises `PlatformError`."""


@dataclass(frozen=True, kw_only=True)
class TaskExport(Export):
    """A format of tasks."""

    write: Callable[[Taskset, Path], tuple[int, list[LeftOut]]]
    """Write tasks to a path; returns their number, and what has no place in the format. Raises `OSError` and `UsageError`."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A format that `hud import` reads."""

    summary: str
    """Contents, in the sentence that lists the sources."""
    recognizes: Callable[[Path], bool]
    """Whether a file or folder is in this format. Raises `OSError`."""


@dataclass(frozen=True, kw_only=True)
class RunSource(Source):
    """A format of runs, which become runs of the store."""

    read: Callable[[Path], Iterable[ForeignRun]]
    """Read the runs of a file or folder, one by one. Raises `OSError` and `UsageError`."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentSource(Source):
    """A format of tasks, which become an environment's folder."""

    import_folder: Callable[[Path, Path], tuple[dict[Path, int], list[LeftOut]]]
    """Write an environment from a folder to a new one.

    Returns the written folders with their numbers of tasks, and what could not be carried over. Raises `OSError` and `UsageError`.
    """
