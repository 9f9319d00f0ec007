"""`PerSource`: a runtime for each source file of the tasks' environments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from hud.errors import UsageError
from hud.eval.runtimes.rollout_runtime import RolloutRuntime, as_runtime

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.environment.connection import Connection
    from hud.environment.templates.task import Provider


class PerSource(RolloutRuntime):
    """Runtime for tasks of several environments, with a separate runtime for each, created at first use."""

    def __init__(self, make: Callable[[str], Provider]) -> None:
        """`make` takes the path of an environment's file."""
        self._make = make
        self._made: dict[str, RolloutRuntime] = {}

    def __call__(self, task: Task) -> AbstractAsyncContextManager[Connection]:
        """Return a new run of the task's environment; raises `UsageError` for an environment without a file."""
        source = None if task.environment is None else task.environment.source_file
        if source is None:
            raise UsageError(f"The environment of task {task.slug!r} was made in no file.")
        if source not in self._made:
            self._made[source] = as_runtime(self._make(source))
        return self._made[source](task)

    async def aclose(self) -> None:
        """Close the runtimes."""
        for runtime in self._made.values():
            await runtime.aclose()
        self._made.clear()
