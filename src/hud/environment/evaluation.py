"""Evaluation, as tasks and subagent tools reach it: handed down when `hud.environment` is first used.

Evaluation knows environments, not the other way round; this module knows evaluation by its protocol alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hud.environment.connection import Connection
    from hud.environment.run import EnvironmentRun
    from hud.environment.templates.task import Task
    from hud.trace import ToolResult
    from hud.trace.recording.recorder import RecordedRun, Recorder

Plays = Callable[[Any], Awaitable[Any]]
"""An agent, or any coroutine function of a run."""
Provides = Callable[["Task"], AbstractAsyncContextManager["Connection"]]
"""A runtime: brings a task's environment up and takes it down."""


class EvaluatedJob(Protocol):
    """The receipt of an evaluation; a `hud.Job`."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def runs(self) -> Sequence[RecordedRun]: ...
    @property
    def reward(self) -> float | None:
        """Mean over the runs that were measured; None if there is none."""
        ...


class Evaluation(Protocol):
    """Interface of evaluation for environments."""

    async def run_task(
        self,
        task: Task,
        agent: Plays,
        *,
        runtime: Provides | None,
        group: int | None,
        max_concurrent: int | None,
        job: EvaluatedJob | None,
        rollout_timeout: float | None,
        recorder: Recorder | None,
        on_run: Callable[[Any], None] | None,
    ) -> EvaluatedJob:
        """See `Task.run`."""
        ...

    async def play_subagent(
        self, run: EnvironmentRun, name: str, arguments: dict[str, Any] | str, timeout: float | None
    ) -> ToolResult:
        """Play the subagent behind the tool `name` for a caller that is no run of ours."""
        ...


_load: Callable[[], Evaluation] | None = None


def hand_down(load: Callable[[], Evaluation]) -> None:
    """Say how evaluation is loaded, on its first use."""
    global _load
    _load = load


def evaluation() -> Evaluation:
    """Return evaluation."""
    assert _load is not None, "hud.environment hands evaluation down when it is imported"
    return _load()
