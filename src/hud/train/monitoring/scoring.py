"""Held-out scores outside a training run: of a model as it is, and of two checkpoints on the same tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from hud.client import connect
from hud.errors import UsageError
from hud.eval.job import Job
from hud.eval.results.intervals import clustered_interval
from hud.inference.models import chat_model
from hud.train.config import TrainConfig
from hud.train.monitoring.progress import Reporter, Score
from hud.train.rollouts.sampling import Rollouts, load_tasks

if TYPE_CHECKING:
    from hud.environment.templates.task import Provider
    from hud.eval.scheduler import StopSignal
    from hud.eval.tasksets.taskset import Taskset


@dataclass(frozen=True)
class Measured:
    """A mean with its 95% interval over tasks: None for fewer than two tasks."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Comparison:
    """The scores of two checkpoints, and their difference task by task."""

    model: str
    first: str
    second: str
    first_score: Measured
    second_score: Measured
    difference: Measured
    """Second minus first."""
    tasks: int
    jobs: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Verdict that the interval of the difference supports."""
        low, high = self.difference.low, self.difference.high
        if low is not None and low > 0:
            return f"{self.second} is better"
        if high is not None and high < 0:
            return f"{self.first} is better"
        return "no difference that these tasks can show"


async def score(
    config: TrainConfig,
    *,
    held_out: Taskset | None = None,
    stop: StopSignal | None = None,
) -> Score | None:
    """Score a model's head on held-out tasks, as its training does; None where nothing was measured."""
    from hud.train.rollouts.runtimes import runtime_named  # Loads sockets and processes.

    tasks = load_tasks(held_out, config.held_out or "", "held-out tasks")
    runtime = runtime_named(config.runtime, tasks)
    try:
        rollouts = await Rollouts.open(config, tasks, runtime=runtime, stop=stop)
        policy = await chat_model(config.model, client=connect())
        return await rollouts.score(await rollouts.models(policy), tasks, config.steps)
    finally:
        aclose = getattr(runtime, "aclose", None)
        if aclose is not None:
            await aclose()


async def compare(
    config: TrainConfig,
    first: str,
    second: str,
    tasks: Taskset,
    *,
    runtime: Provider,
) -> Comparison:
    """Play `tasks` with both checkpoints, on the same seeds, `eval_group` times each."""
    jobs = [await play(config, one, tasks, runtime=runtime) for one in (first, second)]
    rewards = [
        {slug: [run.reward for run in runs if run.reward is not None] for slug, runs in found}
        for found in (job.results.items() for job in jobs)
    ]
    found = compared(config.model, first, second, rewards[0], rewards[1])
    return replace(found, jobs=(jobs[0].id, jobs[1].id))


async def play(
    config: TrainConfig,
    checkpoint: str,
    tasks: Taskset,
    *,
    runtime: Provider | None = None,
    reporter: Reporter | None = None,
    stop: StopSignal | None = None,
    began: Callable[[Job], None] = lambda job: None,
) -> Job:
    """Play `tasks` with a checkpoint as it is scored, in a job of its own, of which `began` hears."""
    chosen = load_tasks(tasks, "", "tasks to compare on")
    rollouts = await Rollouts.open(config, chosen, runtime=runtime, reporter=reporter, stop=stop)
    model = await chat_model(config.model, checkpoint, client=connect())
    name = f"{config.model} {checkpoint}"
    job = await Job.start(name, group=config.eval_group, taskset_id=tasks.taskset_id)
    began(job)
    try:
        await rollouts.play_held_out(await rollouts.models(model), chosen, job)
    finally:
        job.interrupted = job.interrupted or rollouts.stop.stopping
        await job.finish()
    return job


def compared(
    model: str,
    first: str,
    second: str,
    first_rewards: Mapping[str, Sequence[float]],
    second_rewards: Mapping[str, Sequence[float]],
) -> Comparison:
    """Compare rewards by task. Raises `UsageError` where no task was measured with both checkpoints."""
    both = sorted(
        slug for slug, rewards in first_rewards.items() if rewards and second_rewards.get(slug)
    )
    if not both:
        raise UsageError("No task was measured with both checkpoints; hud jobs shows why.")
    differences = [[fmean(second_rewards[slug]) - fmean(first_rewards[slug])] for slug in both]
    return Comparison(
        model=model,
        first=first,
        second=second,
        first_score=_measured([first_rewards[slug] for slug in both]),
        second_score=_measured([second_rewards[slug] for slug in both]),
        difference=_measured(differences),
        tasks=len(both),
    )


def _measured(clusters: Sequence[Sequence[float]]) -> Measured:
    mean = sum(map(sum, clusters)) / sum(map(len, clusters))
    interval = clustered_interval(clusters)
    return Measured(mean) if interval is None else Measured(mean, interval.low, interval.high)
