"""Parts of a task that an import or an export could not carry over, by name, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class LeftOut:
    """One part of a task that has no counterpart."""

    task: str
    part: str
    """Name of the part, or the reason why the whole task was left out."""
    is_task: bool = False
    """True if the task itself was left out."""


def lines_of(left_out: Iterable[LeftOut]) -> list[str]:
    """Return a line for each part, with the tasks that have it; whole tasks come first."""
    tasks: dict[tuple[bool, str], list[str]] = {}
    for omission in left_out:
        tasks.setdefault((not omission.is_task, omission.part), []).append(omission.task)
    lines = []
    for (partly, part), names in sorted(tasks.items()):
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        lines.append(f"{'not carried over' if partly else 'left out'}: {shown}: {part}")
    return lines
