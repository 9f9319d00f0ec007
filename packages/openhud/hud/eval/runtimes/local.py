"""`LocalRuntime`: the environment in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hud.environment import Environment, load_environment
from hud.environment.templates.runtime_config import refuse_unsupported
from hud.errors import UsageError
from hud.eval.runtimes.rollout_runtime import RolloutRuntime
from hud.eval.runtimes.shared_variables import shared_variables

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.environment.connection import Connection

Source = Environment | str | Path | Callable[["Task"], Environment]


class LocalRuntime(RolloutRuntime):
    """Runtime of rollouts in this process; `env.state` is separate for each run, and variables of modules are shared.

    `source` is an environment, a path to one (loaded once), or a function of the task that returns one. By default each
    task runs in the environment that created it.
    """

    def __init__(self, source: Source | None = None) -> None:
        self.source = source
        self._loaded: Environment | None = source if isinstance(source, Environment) else None

    def __call__(self, task: Task) -> AbstractAsyncContextManager[Connection]:
        """Return a new run of the task's environment."""
        refuse_unsupported(task.slug, task.runtime_config, "LocalRuntime")
        return _run(self._environment(task))

    def _environment(self, task: Task) -> Environment:
        if self._loaded is not None:
            return self._loaded
        if isinstance(self.source, str | Path):
            self._loaded = load_environment(self.source)
            return self._loaded
        if callable(self.source):
            return self.source(task)
        if task.environment is None:
            raise UsageError(
                f"Task {task.slug!r} names environment {task.env!r}, which is not loaded in this process; pass "
                "runtime=LocalRuntime('env.py'), or another runtime."
            )
        return task.environment


@asynccontextmanager
async def _run(environment: Environment) -> AsyncIterator[Connection]:
    """Open a run, and warn if runs change variables that they share."""
    shared = shared_variables(environment)
    shared.begin()
    async with environment.run() as run:
        yield run
    shared.end()
