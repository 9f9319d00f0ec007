"""Evaluation, as `hud.environment.evaluation` hands it down to tasks and subagent tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from hud.environment.evaluation import EvaluatedJob, Evaluation, Plays, Provides
from hud.eval.job import Job
from hud.eval.run import Player
from hud.eval.subagents import play_here
from hud.eval.tasksets.taskset import Taskset

if TYPE_CHECKING:
    from hud.environment import EnvironmentRun, Task
    from hud.trace import ToolResult
    from hud.trace.recording.recorder import Recorder


class _Evaluation:
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
        return await Taskset(task.slug or task.id, [task]).run(
            cast(Player, agent),
            runtime=runtime,
            group=group,
            max_concurrent=max_concurrent,
            job=cast(Job | None, job),
            rollout_timeout=rollout_timeout,
            recorder=recorder,
            on_run=on_run,
        )

    async def play_subagent(
        self, run: EnvironmentRun, name: str, arguments: dict[str, Any] | str, timeout: float | None
    ) -> ToolResult:
        return await play_here(run, name, arguments, timeout)


EVALUATION: Evaluation = _Evaluation()
