"""`hud_taskset`: tasks of ours as a taskset of verifiers: a task's prompt, and its own grader as the reward.

The module that verifiers loads by its id:

    from hud_integrations.verifiers import hud_taskset
    Words = hud_taskset("env.py")
    __all__ = ["Words"]
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import verifiers.v1 as vf
from verifiers.v1.types import AssistantMessage, SystemMessage, UserMessage

from hud.errors import InfrastructureFault, UsageError
from hud.eval import Taskset
from hud.eval.rollouts import rollout
from hud.exchange.left_out import LeftOut
from hud_integrations.shared.driven_run import measured_reward
from hud_integrations.shared.event_loop import wait_for
from hud_integrations.shared.jobs import job_of
from hud_integrations.shared.task_prompts import beyond_answers, environment_of, prompt_messages
from hud_integrations.shared.task_reference import reference_of


@cache
def _tasks(source: str) -> Taskset:
    """Return the tasks of a file, loaded once in each process."""
    return Taskset.from_file(source)


_KINDS = {"system": SystemMessage, "user": UserMessage, "assistant": AssistantMessage}


class HudData(vf.TaskData):  # type: ignore[misc]
    """A task by its reference."""

    hud: dict[str, str]
    source: str
    """The file of its environment."""


class HudTask(vf.Task[HudData]):  # type: ignore[misc]
    """A task whose reward is its own grade of the last reply."""

    @vf.reward  # type: ignore[untyped-decorator]
    async def hud_reward(self, trace: Any) -> float:
        """Grade the last reply in a run of its own. Raises `InfrastructureFault` for a run that was not measured."""
        task = _tasks(self.data.source)[self.data.hud["slug"]]
        job = await job_of(f"{task.env} (verifiers)")

        async def verifiers_reply(run: Any) -> None:
            run.trace.content = str(trace.last_reply)

        run = await rollout(task, verifiers_reply, job_id=job.id, recorder=job.recorder)
        reward = measured_reward(run)
        if reward is None:
            raise InfrastructureFault(f"Run {run.trace_id} was not measured: {run.error}")
        return reward


class HudTaskset(vf.Taskset[HudTask, vf.TasksetConfig]):  # type: ignore[misc]
    """The tasks of a file; `hud_taskset` makes a subclass for each."""

    source: ClassVar[str] = ""
    left_out: list[LeftOut]
    """Tasks that were not carried over, after `load`."""

    def load(self) -> Iterator[HudTask]:
        """Yield the tasks that an answer alone is graded by. Raises `UsageError` if there is none."""
        self.left_out = []
        taskset = _tasks(self.source)
        for slug, task in taskset.items():
            problem = beyond_answers(environment_of(task))
            if problem is not None:
                self.left_out.append(LeftOut(slug, problem, is_task=True))
                continue
            prompt = [
                _KINDS[message.role](content=message.text)
                for message in wait_for(prompt_messages(task))
            ]
            data = HudData(name=slug, prompt=prompt, hud=reference_of(task), source=self.source)
            yield HudTask(data, self.config.task)
        if len(self.left_out) == len(taskset):
            reason = self.left_out[0].part if self.left_out else "there is none"
            raise UsageError(f"No task of {self.source} can be a task of verifiers: {reason}.")


def hud_taskset(source: str | Path) -> type[HudTaskset]:
    """Return the taskset class of a file with tasks, a Python module or rows."""
    return type("HudTasks", (HudTaskset,), {"source": str(Path(source).resolve())})
