"""`HUDRollout`: a batch of rollouts with a model by its name, as runs and a tensor of rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from hud.agents import create_agent
from hud.eval import Job, Run, Taskset

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.environment.templates.task import Provider


class HUDRollout:
    """Groups of runs of tasks by a model: one of the platform's, or a provider's."""

    def __init__(
        self,
        model_name: str,
        tasks: Taskset | Sequence[Task],
        group_size: int = 8,
        *,
        runtime: Provider | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        """`group_size`: runs of each task. `runtime`: a `LocalRuntime` by default."""
        self.model_name = model_name
        self.taskset = tasks if isinstance(tasks, Taskset) else Taskset(model_name, tasks)
        self.group_size = group_size
        self._runtime = runtime
        self._max_concurrent = max_concurrent

    async def rollout(self) -> tuple[list[Run], torch.Tensor]:
        """Play every task; returns the runs, groups adjacent, and their rewards as (runs,) float32.

        A run that was not measured has the reward NaN. Runs are recorded in a job with the model's name.
        """
        job = await Job.start(self.model_name, group=self.group_size, purpose="training")
        try:
            await self.taskset.run(
                create_agent(self.model_name),
                runtime=self._runtime,
                job=job,
                max_concurrent=self._max_concurrent,
            )
        finally:
            await job.finish()
        rewards = [float("nan") if run.reward is None else run.reward for run in job.runs]
        return job.runs, torch.tensor(rewards, dtype=torch.float32)
