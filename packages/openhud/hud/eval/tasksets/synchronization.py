"""Tasksets of a platform: download, comparison and upload."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hud.client import connect
from hud.environment import Task
from hud.errors import NotFoundError, UsageError
from hud.eval.tasksets.taskset import Taskset, slug_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FIELDS = ("args", "validation", "agent_config", "columns", "runtime_config", "verifier")
_ROWS_AT_ONCE = 500


@dataclass
class SyncPlan:
    """Changes of an upload."""

    taskset_name: str
    to_create: list[Task] = field(default_factory=list)
    to_update: list[Task] = field(default_factory=list)
    unchanged: list[Task] = field(default_factory=list)
    remote_only: list[Task] = field(default_factory=list)
    """Rows that exist on the platform only; an upload keeps them."""
    before: dict[str, Task] = field(default_factory=dict)
    """The platform's versions of the rows in `to_update`, by slug."""

    @property
    def to_apply(self) -> list[Task]:
        """Rows to upload."""
        return [*self.to_create, *self.to_update]

    def changes(self, task: Task) -> list[str]:
        """Return the differences of a row of `to_update`, one per line: `args.n: 1 → 2`."""
        old, new = (dict(_leaves(_row(version))) for version in (self.before[slug_of(task)], task))
        return [
            f"{place}: {old.get(place, '–')} → {new.get(place, '–')}"
            for place in sorted(old.keys() | new.keys())
            if old.get(place) != new.get(place)
        ]

    def summary(self) -> str:
        """Return the counts in a sentence."""
        return (
            f"{self.taskset_name}: {len(self.to_create)} new, {len(self.to_update)} changed, "
            f"{len(self.unchanged)} as they are, {len(self.remote_only)} only on the platform"
        )


async def fetch(reference: str) -> Taskset:
    """Return the platform's taskset with this name or id. Raises `NotFoundError` for an unknown one."""
    client = connect()
    row = await client.get(f"/v2/tasksets/by-name/{quote(reference, safe='')}")
    exported = await client.get(f"/v2/tasksets/{row['id']}/export")
    tasks = [task_of(row) for row in exported["tasks"]]
    return Taskset(exported["name"], tasks, taskset_id=row["id"])


def fetch_blocking(reference: str) -> Taskset:
    """Fetch a taskset from synchronous code."""
    # In a separate thread: the caller's may already run an event loop.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(fetch(reference))).result()


async def plan(name: str, tasks: Iterable[Task]) -> SyncPlan:
    """Compare tasks with those of the platform's taskset `name`, which need not exist."""
    try:
        remote = {slug_of(task): task for task in await fetch(name)}
    except NotFoundError:
        remote = {}
    made = SyncPlan(name)
    local = list(tasks)
    for task in local:
        there = remote.get(slug_of(task))
        if there is None:
            made.to_create.append(task)
        elif _text(there) != _text(task):
            made.to_update.append(task)
            made.before[slug_of(task)] = there
        else:
            made.unchanged.append(task)
    here = {slug_of(task) for task in local}
    made.remote_only = [task for slug, task in remote.items() if slug not in here]
    return made


async def send(name: str, tasks: list[Task]) -> dict[str, Any]:
    """Upload tasks; returns the platform's last response, with total counts."""
    client = connect()
    total = {"tasks_created": 0, "tasks_updated": 0}
    answer: dict[str, Any] = {}
    for start in range(0, max(len(tasks), 1), _ROWS_AT_ONCE):
        rows = [_row(task) for task in tasks[start : start + _ROWS_AT_ONCE]]
        answer = await client.post(
            "/v2/tasks/upload", {"taskset_name": name, "tasks": rows}, retry=True
        )
        for count in total:
            total[count] += answer[count]
    return {**answer, **total}


def _row(task: Task) -> dict[str, Any]:
    """Return a task as an upload row."""
    dumped = task.model_dump(mode="json", include=set(_FIELDS))
    row = {"name": slug_of(task), "env": {"name": task.env}, "task_id": task.id}
    return row | {name: value for name, value in dumped.items() if value is not None}


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield every value in a row, as JSON, with its path."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{place}.{name}" if place else str(name))
    else:
        yield place, json.dumps(value, ensure_ascii=False)


def _text(task: Task) -> str:
    # Compared as text: in Python 1, 1.0 and True are equal, but not for a task.
    return json.dumps(_row(task), sort_keys=True)


def task_of(row: dict[str, Any]) -> Task:
    """Return the task of an export row of the platform. Raises `UsageError` without `env` or `scenario`."""
    if not row.get("env") or not row.get("scenario"):
        raise UsageError(
            f"The platform's task {row.get('name')!r} names no environment or template."
        )
    fields = {name: row[name] for name in _FIELDS if row.get(name) is not None}
    return Task(env=row["env"], id=row["scenario"], slug=row["name"], **fields)
