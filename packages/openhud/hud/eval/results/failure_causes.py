"""Failed runs by cause: runs with the same error at the same place are one cause with a count."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_PLACE = re.compile(r"(\([^()\s]+:\d+\))")
"""File and line, in the format of `hud.errors.located`: they distinguish causes."""
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+")
"""Variable parts of messages of one cause: addresses, ids, numbers."""
_LONGEST = 160


@dataclass(frozen=True)
class FailedRun:
    """Facts about a failed run."""

    kind: str
    """Kind of the failure, or `cancelled`, or `unknown`."""
    error: str | None
    slug: str
    trace_id: str
    counted: bool = False
    """True if the run is measured: an agent's failure has reward 0."""


@dataclass(frozen=True)
class Cause:
    """Runs with the same cause."""

    kind: str
    error: str
    """Message of the first run; others may differ in numbers and ids."""
    runs: tuple[FailedRun, ...]

    @property
    def tasks(self) -> int:
        """Number of tasks with this cause."""
        return len({run.slug for run in self.runs})


def causes(failed: Iterable[FailedRun]) -> list[Cause]:
    """Return the causes of failures, the most frequent first."""
    runs_by_cause: dict[tuple[str, str], list[FailedRun]] = {}
    for run in failed:
        runs_by_cause.setdefault((run.kind, cause_of(run.error)), []).append(run)
    shown = [
        Cause(kind, runs[0].error or "No reason is recorded.", tuple(runs))
        for (kind, _), runs in runs_by_cause.items()
    ]
    return sorted(shown, key=lambda cause: -len(cause.runs))


def cause_of(error: str | None) -> str:
    """Return the invariant part of an error message."""
    first = (error or "").strip().partition("\n")[0]
    parts = _PLACE.split(first)
    common = [
        part if number % 2 else _CHANGING.sub("#", part)[:_LONGEST]
        for number, part in enumerate(parts)
    ]
    return "".join(common)
