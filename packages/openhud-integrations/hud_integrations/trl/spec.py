"""`HudSpec`: a taskset as the arguments of TRL's `GRPOTrainer`.

spec = HudSpec(Taskset.from_file("tasks.py"))
trainer = GRPOTrainer(
    model=..., train_dataset=spec.train_dataset, reward_funcs=spec.reward_funcs,
    rollout_func=spec.rollout_func,                   # our tool loop and sampler play
    # environment_factory=spec.environment_factory,   # or: TRL's own tool loop plays
)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hud.agents.types import AgentConfig
from hud.errors import UsageError
from hud.eval import LocalRuntime, Taskset
from hud.eval.eval_context import evaluate
from hud.eval.scheduler import MAX_CONCURRENT
from hud.trace.recording.recorder import NullRecorder
from hud_integrations.shared.event_loop import wait_for
from hud_integrations.trl.environments import Episode, episode_classes
from hud_integrations.trl.registry import Registered, register
from hud_integrations.trl.rewards import hud_reward
from hud_integrations.trl.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Callable

    from datasets import Dataset

    from hud.environment import Task
    from hud.environment.templates.task import Provider


class HudSpec:
    """A taskset in TRL's terms: data set, rollouts or environments, and rewards. Every run is recorded in a job."""

    def __init__(
        self,
        tasks: Taskset | Sequence[Task],
        *,
        name: str | None = None,
        runtime: Provider | None = None,
        config: AgentConfig | None = None,
        group: int = 8,
        max_concurrent: int = 64,
    ) -> None:
        """`config`: settings of the tool loop, such as `max_steps`. `runtime`: a `LocalRuntime` by default.

        `group`: runs of a prompt, as `GRPOConfig.num_generations` (records of `environment_factory` use it).
        `max_concurrent`: most rollouts at a time. Raises `UsageError` for an empty taskset.
        """
        taskset = tasks if isinstance(tasks, Taskset) else Taskset(name, tasks)
        if not len(taskset):
            raise UsageError(f"Taskset {taskset.name!r} has no tasks to train on.")
        self.name = name or taskset.name
        self._tasks = register(self.name, taskset, runtime or LocalRuntime())
        self._group = group
        self._rollouts = Rollouts(
            self.name, self._tasks, config or AgentConfig(), max_concurrent=max_concurrent
        )

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """`hud_reward`, which TRL calls with the rollouts' rewards or with the environments."""
        return [hud_reward]

    @cached_property
    def train_dataset(self) -> Dataset:
        """One row for each task: an empty user message, which the environment's prompt fills, and the task's key.

        With tasks of several environments, the column `environment` selects the factory.
        """
        from datasets import Dataset

        several = len(self._environments()) > 1
        rows = []
        for key, entry in self._tasks.items():
            # Only the prompt reaches a rollout function, so the key is in the message, too.
            row: dict[str, Any] = {
                "prompt": [{"role": "user", "content": "", "hud_task": key}],
                "hud_task": key,
            }
            rows.append(row | ({"environment": entry.task.env} if several else {}))
        return Dataset.from_list(rows)

    @cached_property
    def prompt_dataset(self) -> Dataset:
        """The rows of `train_dataset` with the tasks' prompts, for training by the reward alone. Starts each task once."""
        prompts = wait_for(self._prompts())
        return self.train_dataset.map(
            lambda row: {"prompt": [{"role": "user", "content": prompts[row["hud_task"]]}]}
        )

    async def _prompts(self) -> dict[str, str]:
        limit = asyncio.Semaphore(MAX_CONCURRENT)

        async def prompt_of(key: str, entry: Registered) -> tuple[str, str]:
            async with (
                limit,
                evaluate(entry.task, runtime=entry.runtime, recorder=NullRecorder()) as run,
            ):
                return key, run.prompt_text

        return dict(await asyncio.gather(*(prompt_of(*item) for item in self._tasks.items())))

    @property
    def rollout_func(self) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
        """TRL's `rollout_func`: plays each prompt's task with the trainer's weights."""
        return self._rollouts

    @cached_property
    def environment_factory(self) -> Any:
        """TRL's `environment_factory`: a class whose methods are the environment's tools.

        A dictionary of them by name where the taskset has several environments. Lists the tools of each environment
        once, by starting its first task.
        """
        classes: dict[str, type[Episode]] = episode_classes(
            self.name, self._environments(), self._group
        )
        return classes if len(classes) > 1 else next(iter(classes.values()))

    def _environments(self) -> dict[str, str]:
        """Return the key of the first task of each environment."""
        first: dict[str, str] = {}
        for key, entry in self._tasks.items():
            first.setdefault(entry.task.env, key)
        return first
