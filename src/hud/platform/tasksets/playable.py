"""Tasksets that this server can play: their environments are built here, or lie beside the tasks on this machine."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hud.errors import NotFoundError, UsageError
from hud.platform.environments.registry import Environments
from hud.platform.store import Store
from hud.platform.tasksets.versions import Tasksets

MOST_TASKSETS = 100
"""Offered to choose from, the one changed last first."""
MOST_KEPT = 1_000

_needs: dict[tuple[str, int], tuple[int, tuple[str, ...]]] = {}
"""Number of rows and names of environments of a taskset's version, which never change."""


@dataclass(frozen=True)
class Choice:
    """A taskset, and whether it can be played here."""

    id: str
    name: str
    version: int
    tasks: int
    why_not: str | None = None
    """None: it can."""


@dataclass(frozen=True)
class Source:
    """Tasks for a process to play: rows of a taskset, or a file of this machine."""

    name: str
    """Of the taskset, or the path of the file."""
    taskset_id: str | None = None
    version: int | None = None
    rows: tuple[dict[str, Any], ...] = ()


class Playable:
    """The tasksets of one team, and what of them can be played."""

    def __init__(self, store: Store, team: str) -> None:
        self.tasksets = Tasksets(store, team)
        self.environments = Environments(store, team)

    def choices(self) -> list[Choice]:
        """Return the tasksets that were changed last, with why some cannot be played."""
        found, _ = self.tasksets.page(None, MOST_TASKSETS, 0)
        problem_of = functools.cache(self._problem)
        return [self._choice(taskset, problem_of) for taskset in found]

    def source(self, reference: str, version: int | None = None) -> Source:
        """Return a taskset's tasks. Raises `UsageError` where they cannot be played here."""
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
        """Return how to start the newest builds that tasks need, by the names that the tasks give them."""
        names = dict.fromkeys(name for one in sources for name in environments_of(one.rows))
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
    """Return tasks of a file or folder of this machine. Raises `UsageError` where there is none."""
    place = Path(path.strip()).expanduser()
    if not path.strip() or not place.exists():
        raise UsageError(f"There is no file or folder {path.strip()!r} on this machine.")
    return Source(str(place.resolve()))


def environments_of(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of the environments that rows of tasks need, their verifiers' among them."""
    names: dict[str, None] = {}
    for row in rows:
        names[str(row.get("env") or "")] = None
        verifier = row.get("verifier")
        if isinstance(verifier, dict) and verifier.get("env"):
            names[str(verifier["env"])] = None
    return list(names)


def refuse_shared(tasks: Source, held_out: Iterable[Source]) -> None:
    """Raise `UsageError` where a task is to be trained on and held out: its score would say nothing."""
    trained = {_identity(row) for row in tasks.rows}
    for one in held_out:
        if tasks.taskset_id is None and one.taskset_id is None:
            shared = tasks.name == one.name
        else:
            shared = any(_identity(row) in trained for row in one.rows)
        if shared:
            raise UsageError(
                f"{one.name!r} holds tasks of {tasks.name!r}: what is held out must not be trained on."
            )


def _identity(row: dict[str, Any]) -> str:
    return json.dumps([row.get("env"), row.get("scenario"), row.get("args")], sort_keys=True)
