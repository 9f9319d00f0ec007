"""`hud_reward`: rewards for TRL's trainers, by the graders of the tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hud.errors import UsageError
from hud.eval import Job, Run, rollout
from hud.trace import new_id
from hud_integrations.shared.event_loop import wait_for
from hud_integrations.trl.registry import registered

Completion = str | list[dict[str, Any]]


def hud_reward(
    prompts: Sequence[Any],
    completions: Sequence[Completion],
    *,
    run_reward: Sequence[float | None] | None = None,
    environments: Sequence[Any] | None = None,
    hud_task: Sequence[str] | None = None,
    **columns: Any,
) -> list[float | None]:
    """Return the reward of each trajectory, None for one that an environment, a grader or the infrastructure broke.

    TRL leaves None out of a group's mean. Rewards come from the rollouts of `HudSpec.rollout_func`; else from the
    environments of `HudSpec.environment_factory`, which grade the completion's last text; else each completion is graded
    as the answer to the task in the column `hud_task`. Raises `UsageError` where a batch has none of the three.
    """
    del columns
    if run_reward is not None:
        return list(run_reward)
    answers = [answer_of(completion) for completion in completions]
    if environments is not None and all(
        hasattr(environment, "_grade") for environment in environments
    ):
        return [
            episode._grade(answer) for episode, answer in zip(environments, answers, strict=True)
        ]
    if hud_task is not None:
        return wait_for(_graded(hud_task, answers))
    raise UsageError(
        f"hud_reward finds no task for these {len(prompts)} prompts: train on HudSpec(taskset).train_dataset, which has "
        "the column 'hud_task'."
    )


def answer_of(completion: Completion) -> str:
    """Return the last text of a completion: itself, or the content of its last assistant message."""
    if isinstance(completion, str):
        return completion
    texts = [
        message.get("content") or "" for message in completion if message.get("role") == "assistant"
    ]
    return texts[-1] if texts else ""


async def _graded(keys: Sequence[str], answers: Sequence[str]) -> list[float | None]:
    """Grade answers that were given without tools, each by a run of its task; equal keys are one group."""
    job = await Job.start("trl rewards", purpose="training")
    groups = {key: new_id() for key in keys}

    async def graded(key: str, answer: str) -> Run:
        async def trl_completion(run: Run) -> None:
            run.trace.content = answer

        entry = registered(key)
        return await rollout(
            entry.task, trl_completion, runtime=entry.runtime, job_id=job.id, group_id=groups[key]
        )

    job.runs.extend(await asyncio.gather(*map(graded, keys, answers)))
    await job.finish()
    return [run.reward for run in job.runs]
