"""Rollouts for training: which runs a step learns from.

Groups without spread teach nothing; they are left out before any forward pass, and new tasks are drawn in
their place (dynamic sampling, DAPO, arXiv 2503.14476), a bounded number of times. Knows runs and rewards; knows no weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING

from hud.agents import Agent
from hud.errors import UsageError
from hud.eval.job import Job
from hud.eval.results.intervals import clustered_interval
from hud.eval.rollouts import provider_for, release
from hud.eval.run import Run
from hud.eval.scheduler import StopSignal, make_ready, plan, run_planned
from hud.eval.tasksets.taskset import Taskset
from hud.graders.shaping import FADE
from hud.learning.groups import counted_runs, failure_of
from hud.train.config import SubagentConfig, TrainConfig
from hud.train.monitoring.progress import Reporter, Score
from hud.train.rollouts.roles import Cast, cast_agent
from hud.train.rollouts.seeds import draw_tasks

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.eval.rollouts import Provider


@dataclass
class Sampled:
    """What a step's rollouts gave."""

    groups: list[list[Run]] = field(default_factory=list)
    """Groups to learn from, each run with the others of its task."""
    measured: list[Run] = field(default_factory=list)
    """Every run that has a reward, also of groups that are left out."""
    drawn: int = 0
    no_spread: int = 0
    broken: int = 0
    """Groups left out because of failures that were not the agent's."""
    replaced: int = 0
    """Tasks that were drawn in place of groups without spread."""
    failed_runs: int = 0
    tokens: int = 0
    """Tokens that the policy drew."""
    stale: int = 0
    """Groups with spread that were left out because their tokens were too old."""
    of_subagents: list[Run] = field(default_factory=list)
    """Runs that these called, and that those called, whoever played them."""

    def metrics(self) -> dict[str, float]:
        """Return the counts under their metric names."""
        turns = [run.trace.usage.llm_call_count for run in self.measured]
        found = {
            "groups_drawn:sum": float(self.drawn),
            "groups_without_spread:sum": float(self.no_spread),
            "groups_broken:sum": float(self.broken),
            "groups_replaced:sum": float(self.replaced),
            "groups_stale:sum": float(self.stale),
            "failed_rollouts:sum": float(self.failed_runs),
            "sampled_tokens:sum": float(self.tokens),
        }
        if self.reward is not None:
            found["rollout_reward:mean"] = self.reward
            found["turns:mean"] = fmean(turns)
        shares = [
            float(part["value"])
            for run in self.measured
            for part in run.grade.subscores
            if part.get("name") == FADE
        ]
        if shares:
            found["fade_share:mean"] = fmean(shares)
        if self.of_subagents:
            earned = [run.reward for run in self.of_subagents if run.reward is not None]
            found["subagent_runs:sum"] = float(len(self.of_subagents))
            found["subagent_tokens:sum"] = float(self.subagents_tokens)
            if earned:
                found["subagent_reward:mean"] = fmean(earned)
        return found

    @property
    def reward(self) -> float | None:
        """Mean over every measured run; None where there is none."""
        rewards = [run.reward for run in self.measured if run.reward is not None]
        return fmean(rewards) if rewards else None

    @property
    def earned_nothing(self) -> bool:
        """True where runs were measured and not one has a reward above 0."""
        rewards = [run.reward for run in self.measured if run.reward is not None]
        return bool(rewards) and max(rewards) <= 0.0

    @property
    def subagents_tokens(self) -> int:
        """Tokens that subagents drew."""
        return sum(run.trace.usage.completion_tokens for run in self.of_subagents)


class Player:
    """Plays tasks with the policy, for training and for scoring alike."""

    def __init__(
        self,
        config: TrainConfig,
        runtime: Provider | None,
        reporter: Reporter,
        stop: StopSignal,
        subagents: dict[str, SubagentConfig] | None = None,
    ) -> None:
        """`subagents` says who plays whom, by a tool's name or the model that its environment gives it."""
        self.config = config
        self.subagents = subagents or {}
        self.runtime = runtime
        self.reporter = reporter
        self.stop = stop

    async def sample(self, cast: Cast, tasks: list[Task], step: int, job: Job) -> Sampled:
        """Play a step's tasks until enough groups have spread, or no more may be drawn."""
        config = self.config
        found = Sampled()
        progress = config.progress_of(step)
        agent = self._agent(cast, config.temperature, (config.seed, step), progress)
        waiting = draw_tasks(tasks, config.seed, step, config.tasks_per_step)
        for wave in range(1 + config.dynamic_sampling):
            chosen = list(islice(waiting, config.tasks_per_step - len(found.groups)))
            if not chosen or self.stop.stopping:
                break
            self.reporter.phase("rollouts", step, len(chosen) * config.group)
            runs = await self._play(agent, chosen, config.group, job)
            found.drawn += len(chosen)
            found.replaced += len(chosen) if wave else 0
            found.of_subagents += subagents_runs(runs)
            sort(runs, found, config)
        return found

    async def play_group(
        self,
        cast: Cast,
        task: Task,
        place: tuple[object, ...],
        job: Job,
        limit: asyncio.Semaphore,
        heard: Callable[[Run], None],
        *,
        step: int,
    ) -> list[Run]:
        """Play one task for a step as often as a group has runs, each once `limit` has room for it; `heard` gets each one that ended."""

        def ended(run: Run) -> None:
            self.reporter.run_ended(run.reward)
            heard(run)

        config = self.config
        progress = config.progress_of(step)
        agent = self._agent(cast, config.temperature, (config.seed, *place), progress)
        provider = self.runtime if self.runtime is not None else provider_for([task])
        await make_ready(agent, None, config.rollout_timeout)
        try:
            return await run_planned(
                plan([task], config.group),
                agent,
                job,
                provider,
                max_concurrent=config.group,
                rollout_timeout=config.rollout_timeout,
                stop=self.stop,
                on_run=ended,
                limit=limit,
            )
        finally:
            if self.runtime is None:
                await release(provider)

    async def score(self, cast: Cast, tasks: list[Task], step: int) -> Score | None:
        """Play held-out tasks, and return their mean reward; None where nothing was measured.

        Their seeds are the same at every step, so that two scores differ by the policy alone.
        """
        config = self.config
        self.reporter.phase("held-out", step, len(tasks) * config.eval_group)
        job = await Job.start(f"{config.model} held-out step {step}", group=config.eval_group)
        try:
            runs = await self.play_held_out(cast, tasks, job)
        finally:
            await job.finish()
        clusters = [
            rewards
            for one in job.results.values()
            if (rewards := [run.reward for run in one if run.reward is not None])
        ]
        if self.stop.stopping or not clusters:
            return None
        count = sum(map(len, clusters))
        interval = clustered_interval(clusters)
        mean = sum(map(sum, clusters)) / count
        return Score(
            step=step,
            mean=mean,
            low=None if interval is None else interval.low,
            high=None if interval is None else interval.high,
            runs=count,
            failed=len(runs) - count,
            job_id=job.id,
        )

    async def play_held_out(self, cast: Cast, tasks: list[Task], job: Job) -> list[Run]:
        """Play tasks as they are scored: `eval_group` times each, on seeds that depend on the task alone."""
        place = (self.config.seed, "held-out")
        agent = self._agent(cast, self.config.eval_temperature, place)
        return await self._play(agent, tasks, self.config.eval_group, job)

    def _agent(
        self,
        cast: Cast,
        temperature: float,
        place: tuple[object, ...],
        progress: float | None = None,
    ) -> Agent:
        return cast_agent(cast, self.config, self.subagents, temperature, place, progress)

    async def _play(self, agent: Agent, tasks: Iterable[Task], group: int, job: Job) -> list[Run]:
        before = len(job.runs)
        heard: Callable[[Run], None] = lambda run: self.reporter.run_ended(run.reward)  # noqa: E731
        await Taskset(job.name, tasks).run(
            agent,
            runtime=self.runtime,
            group=group,
            max_concurrent=self.config.max_concurrent,
            job=job,
            rollout_timeout=self.config.rollout_timeout,
            stop=self.stop,
            on_run=heard,
        )
        return job.runs[before:]


def subagents_runs(runs: Iterable[Run]) -> list[Run]:
    """Return the runs that `runs` called, and that those called."""
    return [
        one for run in runs for child in run.children for one in (child, *subagents_runs([child]))
    ]


def of_subagent(sampled: Sampled, model: str, config: TrainConfig) -> Sampled:
    """Return what a step gave to a subagent's model: the runs that were played with it.

    A call and the calls of the same tool in the same place of the caller's other attempts are a group. Not every
    attempt makes it, so that groups have whatever size they have, from two on.
    """
    found = Sampled()
    sort([run for run in sampled.of_subagents if run.model == model], found, config, whole=False)
    found.drawn = len(found.groups) + found.no_spread + found.broken
    return found


def sort(runs: list[Run], found: Sampled, config: TrainConfig, *, whole: bool = True) -> None:
    """Count `runs` into `found`, and their groups: those to learn from, and those without spread or broken.

    With `whole`, a group that misses runs is broken.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        found.tokens += run.trace.usage.completion_tokens
        if _failure(run) is None:
            found.measured.append(run)
        else:
            found.failed_runs += 1
        groups.setdefault(run.group_id or "", []).append(run)
    for group in groups.values():
        rewards = _rewards(group, config)
        if rewards is None or (whole and len(group) < config.group):
            found.broken += 1
        elif max(rewards) == min(rewards) and (config.baseline != "none" or rewards[0] == 0):
            found.no_spread += 1
        else:
            found.groups.append(group)


def _failure(run: Run) -> str | None:
    return failure_of(run.reward, run.failure_kind, run.trace.stop_reason)


def _rewards(group: list[Run], config: TrainConfig) -> list[float] | None:
    """Return the rewards that count in a group, or None where too many of its runs failed."""
    failures = [_failure(run) for run in group]
    counted = counted_runs(failures, [""] * len(group), config.advantages)
    rewards = [
        run.reward if failure is None and run.reward is not None else 0.0
        for run, failure, counts in zip(group, failures, counted, strict=True)
        if counts
    ]
    return rewards or None


def check_tasks(tasks: list[Task], what: str) -> None:
    """Refuse a set of tasks that there is nothing in."""
    if not tasks:
        raise UsageError(f"There are no {what}; give a file or folder with at least one.")


def fitted(config: TrainConfig, tasks: list[Task]) -> TrainConfig:
    """Return the configuration with no more tasks in a step than there are: none comes twice in a step."""
    fewest = min(config.tasks_per_step, len(tasks))
    return config.model_copy(update={"tasks_per_step": fewest})
