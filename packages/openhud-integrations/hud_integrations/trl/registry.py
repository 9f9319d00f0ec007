"""Tasks by the key that a data set's rows carry: TRL hands rows to its functions, and no objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hud.errors import NotFoundError

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.environment.templates.task import Provider


@dataclass(frozen=True)
class Registered:
    """A task, and the runtime that brings its environment up."""

    task: Task
    runtime: Provider


_TASKS: dict[str, Registered] = {}


def register(taskset: str, tasks: Iterable[Task], runtime: Provider) -> dict[str, Registered]:
    """Register tasks, and return them by key: the taskset's name and the task's slug."""
    keyed = {f"{taskset}/{task.slug or task.id}": Registered(task, runtime) for task in tasks}
    _TASKS.update(keyed)
    return keyed


def registered(key: str) -> Registered:
    """Return a registered task. Raises `NotFoundError` for an unknown key."""
    registered_task = _TASKS.get(key)
    if registered_task is None:
        raise NotFoundError(f"No HudSpec of this process has the task {key!r}.")
    return registered_task
