"""Rollouts of training and of held-out scores: tasks played with the policy and its subagents.

A synchronous step plays its tasks, and replacements of groups without signal (dynamic sampling, DAPO, arXiv 2503.14476),
in a limited number of rounds. `hud.train.rollouts.stream` plays ahead. Works on runs and rewards; independent of weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from hud.agents import Agent
from hud.client import connect
from hud.errors import UsageError
from hud.eval.job import Job
from hud.eval.results.held_out_scores import Score
from hud.eval.run import Run
from hud.eval.scheduler import StopSignal, check_limits, plan, run_planned
from hud.eval.tasksets.taskset import Taskset
from hud.inference.models import chat_model
from hud.review.judge_forms import open_judge
from hud.train.config import SubagentConfig, TrainConfig
from hud.train.monitoring.progress import Reporter
from hud.train.rollouts.batch import RolloutBatch
from hud.train.rollouts.curriculum import Curriculum
from hud.train.rollouts.held_out import HeldOut
from hud.train.rollouts.programs import program_agent
from hud.train.rollouts.subagents import agent_of, refuse_efforts, subagents_of

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.environment.templates.task import Provider
    from hud.review.group_judges import RelativeJudge
    from hud.trace import ChatModel

Models = Mapping[str, "ChatModel"]
"""Models by slug: the policy under `TrainConfig.model`, and those of its subagents."""


class Rollouts:
    """Player of tasks by a configuration. `models` of every call hold the weights."""

    def __init__(
        self,
        config: TrainConfig,
        runtime: Provider | None,
        reporter: Reporter | None,
        stop: StopSignal | None,
        subagents: dict[str, SubagentConfig],
        judge: RelativeJudge | None = None,
    ) -> None:
        """`subagents` are by a tool's name or its environment's model. `judge` grades groups, and not held-out runs."""
        self.config, self.runtime, self.subagents, self.judge = config, runtime, subagents, judge
        self.reporter = reporter or Reporter()
        self.stop = stop if stop is not None else StopSignal()

    @classmethod
    async def open(
        cls,
        config: TrainConfig,
        tasks: Iterable[Task],
        *,
        runtime: Provider | None,
        reporter: Reporter | None = None,
        stop: StopSignal | None = None,
        played_as: Mapping[str, SubagentConfig] | None = None,
    ) -> Rollouts:
        """Return the rollouts of `tasks`; raises `UsageError` for subagents and efforts that do not fit the tasks and models, and
        for a program that is not installed.

        `played_as` holds settings of models as subagents, by slug, for those configured by model only.
        """
        subagents = subagents_of(config, tasks, played_as)
        await refuse_efforts(connect(), config, subagents)
        if config.agent is not None:
            await program_agent(config, config.temperature).prepare()
        judge = None
        if config.judge is not None:
            judge = await open_judge(
                connect(),
                config.judge,
                by=config.judge_by,
                criteria=config.criteria,
                share=config.judge_share,
                seed=config.seed,
                group=config.group,
            )
        return cls(config, runtime, reporter, stop, subagents, judge)

    async def aclose(self) -> None:
        """Close the judge, and report what is known of it."""
        if self.judge is not None:
            for line in self.judge.lines():
                self.reporter.note(line)
            await self.judge.aclose()

    async def models(self, policy: ChatModel) -> dict[str, ChatModel]:
        """Return the models: the given policy, and subagents' models at their heads."""
        others = {subagent.model for subagent in self.subagents.values()} - {self.config.model}
        heads = {model: await chat_model(model, client=connect()) for model in others}
        return {self.config.model: policy, **heads}

    async def groups(
        self, models: Models, curriculum: Curriculum, step: int, job: Job, batch: RolloutBatch
    ) -> AsyncIterator[list[list[Run]]]:
        """Play a step with `models` into `batch`, and yield the groups with signal, all at once; none after a stop."""
        config = self.config
        agent = self._agent(
            models, config.temperature, (config.seed, step), config.progress_of(step)
        )
        waiting = curriculum.draw(step)
        for _ in range(1 + config.dynamic_sampling):
            missing = config.tasks_per_step - len(batch.groups)
            chosen = list(islice(waiting, missing))
            if not chosen or self.stop.stopping:
                break
            self.reporter.phase("rollouts", step, len(chosen) * config.group)
            if config.spare_groups:
                chosen += islice(waiting, config.spare_groups)
                await self._play_first(models, chosen, missing, step, job, batch)
            else:
                runs = await self._play(agent, chosen, config.group, job, self.judge)
                batch.add(runs, config)
        # The job is a record only: its runs are not kept in memory.
        job.runs.clear()
        batch.replaced = max(0, batch.drawn - config.tasks_per_step)
        batch.complete = not self.stop.stopping
        if batch.complete:
            self.reporter.phase("update", step, 0)
            yield batch.groups

    async def _play_first(
        self,
        models: Models,
        tasks: list[Task],
        wanted: int,
        step: int,
        job: Job,
        batch: RolloutBatch,
    ) -> None:
        """Play groups into `batch` until `wanted` of them are complete, with the seeds that they always have at a step.

        The others are cancelled. Rollouts get room in the order of their groups, so those begun last wait longest.
        """
        limit = asyncio.Semaphore(self.config.max_concurrent)

        async def play(task: Task) -> list[Run]:
            return await self.play_group(
                models, task, (step,), job, limit, lambda _: None, step=step
            )

        playing = {asyncio.create_task(play(task)) for task in tasks}
        complete = 0
        try:
            while playing and complete < wanted and not self.stop.stopping:
                done, playing = await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
                for group_task in done:
                    if complete < wanted:
                        batch.add(group_task.result(), self.config)
                        complete += 1
        finally:
            for group_task in playing:
                group_task.cancel()
            if playing:
                await asyncio.wait(playing)

    async def play_group(
        self,
        models: Models,
        task: Task,
        place: tuple[object, ...],
        job: Job,
        limit: asyncio.Semaphore,
        on_run: Callable[[Run], None],
        *,
        step: int,
    ) -> list[Run]:
        """Play a group of a task for a step, within `limit`; `on_run` is called with each finished run."""

        def ended(run: Run) -> None:
            self.reporter.run_ended(run.reward)
            on_run(run)

        config = self.config
        agent = self._agent(
            models, config.temperature, (config.seed, *place), config.progress_of(step)
        )
        check_limits(None, config.rollout_timeout)
        await agent.prepare()
        return await run_planned(
            plan([task], config.group),
            agent,
            job,
            self.runtime,
            max_concurrent=config.group,
            rollout_timeout=config.rollout_timeout,
            stop=self.stop,
            on_run=ended,
            limit=limit,
            judge=self.judge,
        )

    async def score(
        self,
        models: Models,
        held_out: HeldOut,
        step: int,
        begun: Callable[[str], Awaitable[None]] | None = None,
    ) -> Score | None:
        """Play held-out tasks, and return their scores; None without a measured run.

        `begun` is called with the id of their job before any is played. Seeds are equal at every step, so that scores differ
        by the policy only.
        """
        config = self.config
        planned = len(held_out.tasks) * config.eval_group
        self.reporter.phase("held-out", step, planned)
        job = await Job.start(
            f"{config.model} held-out step {step}",
            group=config.eval_group,
            planned=planned,
            purpose="held_out",
        )
        if begun is not None:
            await begun(job.id)
        try:
            runs = await self.play_held_out(models, held_out.tasks, job)
        finally:
            await job.finish()
        return None if self.stop.stopping else held_out.score(step, runs, job.id)

    async def play_held_out(self, models: Models, tasks: list[Task], job: Job) -> list[Run]:
        """Play tasks for scores: `eval_group` times each, with seeds by task only."""
        return await self.play_at(models, tasks, job, ("held-out",), self.config.eval_group)

    async def play_at(
        self,
        models: Models,
        tasks: Iterable[Task],
        job: Job,
        place: tuple[object, ...],
        group: int = 1,
    ) -> list[Run]:
        """Play tasks with the seeds of a place, at the temperature of scores: equal places differ by the models only."""
        agent = self._agent(models, self.config.eval_temperature, (self.config.seed, *place))
        return await self._play(agent, tasks, group, job)

    def _agent(
        self,
        models: Models,
        temperature: float,
        place: tuple[object, ...],
        progress: float | None = None,
    ) -> Agent:
        return agent_of(models, self.config, self.subagents, temperature, place, progress)

    async def _play(
        self,
        agent: Agent,
        tasks: Iterable[Task],
        group: int,
        job: Job,
        judge: RelativeJudge | None = None,
    ) -> list[Run]:
        before = len(job.runs)
        await Taskset(job.name, tasks).run(
            agent,
            runtime=self.runtime,
            group=group,
            max_concurrent=self.config.max_concurrent,
            job=job,
            rollout_timeout=self.config.rollout_timeout,
            stop=self.stop,
            on_run=lambda run: self.reporter.run_ended(run.reward),
            judge=judge,
        )
        return job.runs[before:]


def load_tasks(taskset: Taskset | None, source: str, what: str) -> list[Task]:
    """Return the given tasks, else those of a file or folder. Raises `UsageError` without tasks."""
    if taskset is None and not source:
        raise UsageError(f"There are no {what}: give a file or folder.")
    tasks = list(taskset if taskset is not None else Taskset.from_file(source))
    if not tasks:
        raise UsageError(f"There are no {what}; give a file or folder with at least one.")
    return tasks
