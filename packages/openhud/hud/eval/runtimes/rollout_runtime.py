"""`RolloutRuntime`: the port of runtimes, which open environments for runs or play whole runs elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from hud.errors import UsageError

if TYPE_CHECKING:
    from hud.agents.agent import Agent
    from hud.environment import Task
    from hud.environment.connection import Connection
    from hud.environment.templates.task import Provider
    from hud.eval.run import Run


class RolloutRuntime:
    """A runtime of rollouts.

    A subclass opens environments in `__call__`, or plays runs elsewhere in `play`.
    """

    def __call__(self, task: Task) -> AbstractAsyncContextManager[Connection]:
        """Return a context manager that opens the environment of one run, and frees on exit what the run held.

        Entering it raises `InfrastructureFault` for what another attempt may cure, `EnvironmentFault` for what none will,
        and `UsageError` for a runtime or task that is wrong for every run.
        """
        raise UsageError(
            f"Task {task.slug!r}: {type(self).__name__} plays whole rollouts elsewhere; there is no environment here to "
            "connect to."
        )

    def check_agent(self, agent: Agent) -> None:
        """Raise `UsageError` for an agent that cannot play in this runtime."""

    async def play(self, run: Run, agent: Agent, rollout_timeout: float | None) -> Run:
        """Have `agent` play `run`, repeated while infrastructure breaks it; return the last attempt.

        `rollout_timeout` is in seconds; None: one hour.
        """
        from hud.eval.rollouts import play_here  # The order of a rollout; it imports runtimes.

        return await play_here(run, agent, self, rollout_timeout)

    async def abandon(self, jobs: Sequence[str]) -> None:
        """Cancel what is still played elsewhere of jobs whose process was killed."""

    async def aclose(self) -> None:
        """Free what is held between runs. A later run opens it again."""


class FunctionRuntime(RolloutRuntime):
    """A runtime of a plain function of the task."""

    def __init__(self, open_environment: Provider) -> None:
        self._open_environment = open_environment

    def __call__(self, task: Task) -> AbstractAsyncContextManager[Connection]:
        return self._open_environment(task)


def as_runtime(provider: Provider | None) -> RolloutRuntime:
    """Return a runtime of any form: one of this port, a function of the task, or None for environments in this process."""
    if isinstance(provider, RolloutRuntime):
        return provider
    if provider is None:
        from hud.eval.runtimes.local import LocalRuntime

        return LocalRuntime()
    return FunctionRuntime(provider)
