"""`Rollouts`: TRL's `rollout_func`, played by the tool loop with the weights that the trainer has now."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import AgentConfig
from hud.errors import UsageError
from hud.eval import Job, Run
from hud.eval.scheduler import PlannedRun, run_planned
from hud.eval.tasksets.taskset import slug_of
from hud.learning.datums import Datum, datums_of, payload_of
from hud.learning.failed_runs import failure_of
from hud.trace import SamplingParams, new_id
from hud_integrations.shared.event_loop import wait_for
from hud_integrations.trl.live_policy import LivePolicy
from hud_integrations.trl.registry import Registered

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from hud.environment import Task
    from hud.environment.connection import Connection


@dataclass
class Columns:
    """The result of a rollout function: a row for each prompt, in order."""

    prompt_ids: list[list[int]] = field(default_factory=list)
    completion_ids: list[list[int]] = field(default_factory=list)
    """Everything after the first turn's prompt: sampled tokens, and tokens of tool results."""
    logprobs: list[list[float]] = field(default_factory=list)
    """Natural log, under the weights that sampled; 0 for a token that was not sampled."""
    env_mask: list[list[int]] = field(default_factory=list)
    """1 for a sampled token."""
    run_reward: list[float | None] = field(default_factory=list)
    """None for a run that was not measured."""
    trace_id: list[str] = field(default_factory=list)


class Rollouts:
    """A rollout function with one job and one sampler for each trainer that calls it."""

    def __init__(
        self,
        name: str,
        tasks: Mapping[str, Registered],
        config: AgentConfig,
        *,
        max_concurrent: int,
    ) -> None:
        self._name = name
        self._tasks = tasks
        # By slug: each run plays a copy of its task.
        self._runtimes = {slug_of(entry.task): entry.runtime for entry in tasks.values()}
        self._config = config
        self._max_concurrent = max_concurrent
        self._live: LivePolicy | None = None
        self._job: Job | None = None
        self._splits = 0

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Play the task of each prompt; equal prompts that follow one another are one group.

        Raises `UsageError` for prompts without a task, and for settings of the trainer that cut the distribution.
        """
        params = sampling_params(trainer.args)
        if self._live is None:
            model = trainer.accelerator.unwrap_model(trainer.model)
            self._live = LivePolicy(
                model, trainer.processing_class, slots=min(self._max_concurrent, len(prompts))
            )
            trainer.add_callback(_AtTheEnd(self))
        self._live.refresh(f"trl-step-{trainer.state.global_step}")
        agent = ToolLoopAgent(self._live.policy.chat_model(self._name), self._config, params)
        runs = wait_for(self._play(self._planned(prompts, trainer), agent))
        columns = Columns()
        for run in runs:
            self._append(columns, run)
        return vars(columns)

    def close(self) -> None:
        """Stop sampling, and close the job; a later call opens others."""
        live, self._live = self._live, None
        if live is not None:
            live.policy.close()
        job, self._job = self._job, None
        if job is not None:
            wait_for(job.finish())

    def _planned(self, prompts: Sequence[Any], trainer: Any) -> list[PlannedRun]:
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        planned: list[PlannedRun] = []
        for key, same in groupby(map(_key_of, prompts)):
            if key not in self._tasks:
                raise UsageError(
                    f"The prompt of task {key!r} is none of HudSpec {self._name!r}; train on its train_dataset."
                )
            group = ""
            for place, _ in enumerate(same):
                if place % size == 0:
                    group = new_id()
                planned.append(PlannedRun(self._tasks[key].task, place % size, group))
        return planned

    async def _play(self, planned: Sequence[PlannedRun], agent: ToolLoopAgent) -> list[Run]:
        if self._job is None:
            self._job = await Job.start(f"{self._name} (trl)", purpose="training")
        runs = await run_planned(
            planned, agent, self._job, self._bring_up, max_concurrent=self._max_concurrent
        )
        await self._job.recorder.flush()
        return runs

    def _bring_up(self, task: Task) -> AbstractAsyncContextManager[Connection]:
        return self._runtimes[slug_of(task)](task)

    def _append(self, columns: Columns, run: Run) -> None:
        datum = self._datum(run)
        columns.trace_id.append(run.trace_id)
        if datum is None:
            # TRL needs a completion; nothing of this one is trained on.
            end = self._live_end()
            prompt, completion, logprobs, mask = [end], [end], [0.0], [0]
            columns.run_reward.append(None)
        else:
            first = datum.turns[0][0]
            prompt = datum.tokens[:first].tolist()
            completion = datum.tokens[first:].tolist()
            logprobs = datum.logprobs[first:].tolist()
            mask = datum.mask[first:].astype(int).tolist()
            failure = failure_of(run.reward, run.failure_kind, run.trace.stop_reason)
            columns.run_reward.append(None if failure else run.reward)
        columns.prompt_ids.append(prompt)
        columns.completion_ids.append(completion)
        columns.logprobs.append(logprobs)
        columns.env_mask.append(mask)

    def _datum(self, run: Run) -> Datum | None:
        """Return the run's tokens; where a chat template split them, those of the last part."""
        payload = payload_of(run.trace, run.reward or 0.0)
        parts = datums_of(payload) if payload is not None else []
        if len(parts) > 1:
            self._splits += 1
            if self._splits == 1:
                warnings.warn(
                    f"Run {run.trace_id}: the chat template split its turns into {len(parts)} sequences, and TRL takes "
                    "one for each rollout: the last is trained on (docs/chat-formats.md says which templates split).",
                    stacklevel=2,
                )
        return parts[-1] if parts else None

    def _live_end(self) -> int:
        assert self._live is not None
        return self._live.policy.chat.end_id


def sampling_params(arguments: Any) -> SamplingParams:
    """Return the sampling parameters of a `GRPOConfig`.

    Raises `UsageError` for top-p, top-k or min-p: tokens of a cut distribution cannot be trained on.
    """
    cuts = {
        "top_p": arguments.top_p not in (None, 1.0),
        "top_k": bool(arguments.top_k),
        "min_p": bool(arguments.min_p),
    }
    cut = [name for name, is_set in cuts.items() if is_set]
    if cut:
        raise UsageError(
            f"GRPOConfig sets {', '.join(cut)}, which cuts the distribution that is trained on; leave it out."
        )
    return SamplingParams(
        max_tokens=arguments.max_completion_length, temperature=arguments.temperature
    )


def _key_of(prompt: Any) -> str:
    messages = prompt if isinstance(prompt, list) else []
    key = next((message["hud_task"] for message in messages if message.get("hud_task")), None)
    if key is None:
        raise UsageError(
            "A prompt names no task: train on HudSpec(taskset).train_dataset, whose messages have the key 'hud_task'."
        )
    return str(key)


class _AtTheEnd(TrainerCallback):
    """Closes the job when training ends."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del args, state, control
        self._rollouts.close()
