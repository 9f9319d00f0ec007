"""References to tasks in the rows of trainers' data sets, and runtimes for them in trainers' processes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from hud import exact_json
from hud.environment import Task
from hud.errors import UsageError
from hud.eval import ForkRuntime, LocalRuntime, Runtime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hud.environment.templates.task import Provider

FIELDS = ("env", "id", "args", "slug")


def reference_of(task: Task) -> dict[str, str]:
    """Return a task as texts: tables have one type for a column, so its arguments are JSON."""
    return {
        "env": task.env,
        "id": task.id,
        "args": exact_json.dumps(task.args).decode(),
        "slug": task.slug,
    }


def task_of(reference: Mapping[str, Any]) -> Task:
    """Return the task of a reference. Raises `UsageError` for a row that has none."""
    try:
        return Task(
            env=reference["env"],
            id=reference["id"],
            args=exact_json.loads(reference["args"]),
            slug=reference["slug"],
        )
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            f"A row of the data set names no task, with {', '.join(FIELDS)}: write it with `hud export`."
        ) from None


@cache
def runtime_of(environment: str, kind: str = "local") -> Provider:
    """Return the runtime of an environment's file, or of `tcp://HOST:PORT`; one for each process.

    Raises `UsageError` for a kind that is neither `local` nor `fork`.
    """
    if environment.startswith("tcp://"):
        return Runtime(environment)
    kinds: dict[str, Any] = {"local": LocalRuntime, "fork": ForkRuntime}
    if kind not in kinds:
        raise UsageError(f"There is no runtime {kind!r} here; there are local and fork.")
    made: Provider = kinds[kind](environment)
    return made
