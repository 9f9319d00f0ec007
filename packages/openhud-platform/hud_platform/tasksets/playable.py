"""Playable tasksets: their environments have a build on this server, or are files on this machine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hud.environment.templates.task_identity import TaskIdentity, TaskIndex
from hud.errors import NotFoundError, UsageError
from hud_platform.environments.registry import Environments
from hud_platform.store import Store
from hud_platform.tasksets.versions import Tasksets

MOST_TASKSETS = 100
"""Maximum number of tasksets offered in a form, most recently changed first."""
MOST_KEPT = 1_000

_needs: dict[tuple[str, int], tuple[int, tuple[str, ...]]] = {}
"""Cache by taskset and version, which are immutable: number of rows, names of environments."""


@dataclass(frozen=True)
class Choice:
    """A taskset, with the reason if this server cannot play it."""

    id: str
    name: str
    version: int
    tasks: int
    why_not: str | None = None
    """None: the taskset can be played."""


@dataclass(frozen=True)
class Source:
    """Tasks for a process to play: rows of a taskset, or a file of this machine."""

    name: str
    """Name of the taskset, or path of the file."""
    taskset_id: str | None = None
    version: int | None = None
    rows: tuple[dict[str, Any], ...] = ()


class Playable:
    """Tasksets of one team that this server can play."""

    def __init__(self, store: Store, team: str) -> None:
        self.tasksets = Tasksets(store, team)
        self.environments = Environments(store, team)

    def choices(self) -> list[Choice]:
        """Return the most recently changed tasksets, with the reason for those that cannot be played."""
        tasksets, _ = self.tasksets.page(None, MOST_TASKSETS, 0)
        problem_of = functools.cache(self._problem)
        return [self._choice(taskset, problem_of) for taskset in tasksets]

    def source(self, reference: str, version: int | None = None) -> Source:
        """Return a taskset's tasks. Raises `UsageError` if this server cannot play them."""
        exported = self.tasksets.export(reference, version)
        rows = exported["tasks"]
        if not rows:
            raise UsageError(f"The taskset {exported['name']!r} has no tasks.")
        for name in environments_of(rows):
            problem = self._problem(name)
            if problem is not None:
                raise UsageError(f"The taskset {exported['name']!r} cannot be played: {problem}")
        return Source(exported["name"], exported["id"], exported["version"], tuple(rows))

    def runnable(self, sources: Iterable[Source]) -> dict[str, dict[str, Any]]:
        """Return the launch data of the newest builds for tasks, by the environments' names in the tasks."""
        names = dict.fromkeys(name for source in sources for name in environments_of(source.rows))
        return {name: self.environments.runnable(name).shown() for name in names}

    def _choice(self, taskset: dict[str, Any], problem_of: Callable[[str], str | None]) -> Choice:
        key = (taskset["id"], taskset["version"])
        if key not in _needs:
            if len(_needs) >= MOST_KEPT:
                _needs.clear()
            rows = self.tasksets.export(taskset["id"])["tasks"]
            _needs[key] = len(rows), tuple(environments_of(rows))
        count, names = _needs[key]
        problem = next(filter(None, map(problem_of, names)), None)
        if not count:
            problem = "It has no tasks."
        return Choice(taskset["id"], taskset["name"], taskset["version"], count, problem)

    def _problem(self, environment: str) -> str | None:
        try:
            self.environments.runnable(environment)
        except NotFoundError:
            return f"No build of its environment {environment!r} is on this server (hud deploy brings one)."
        return None


def file_source(path: str) -> Source:
    """Return the tasks of a file or folder on this machine. Raises `UsageError` if it does not exist."""
    place = Path(path.strip()).expanduser()
    if not path.strip() or not place.exists():
        raise UsageError(f"There is no file or folder {path.strip()!r} on this machine.")
    return Source(str(place.resolve()))


def environments_of(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of the environments in rows of tasks, with those that grade: a row's `verifier`."""
    names: dict[str, None] = {}
    for row in rows:
        names[str(row.get("env") or "")] = None
        verifier = row.get("verifier")
        if isinstance(verifier, dict) and verifier.get("env"):
            names[str(verifier["env"])] = None
    return list(names)


def refuse_shared(tasks: Source, held_out: Iterable[Source]) -> None:
    """Raise `UsageError` if a held-out task is also trained on: its score would not measure generalization."""
    trained = TaskIndex(map(_identity, tasks.rows))
    for source in held_out:
        if tasks.taskset_id is None and source.taskset_id is None:
            shared = tasks.name == source.name
        else:
            shared = any(_identity(row) in trained for row in source.rows)
        if shared:
            raise UsageError(
                f"{source.name!r} holds tasks of {tasks.name!r}: held-out tasks must not be trained on."
            )


def _identity(row: dict[str, Any]) -> TaskIdentity:
    return TaskIdentity.of(row.get("env") or "", row.get("scenario") or "", row.get("args"))
