"""Two checkpoints of a model on the same tasks: how good is each, and is one better?"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from hud.client import connect
from hud.errors import UsageError
from hud.eval.job import Job
from hud.eval.scheduling import StopSignal
from hud.eval.statistics import clustered_interval
from hud.train.casting import cast_of, subagents_of
from hud.train.config import TrainConfig
from hud.train.progress import Reporter, SilentReporter
from hud.train.sampling import Player, check_tasks

if TYPE_CHECKING:
    from hud.eval.rollouts import Provider
    from hud.eval.taskset import Taskset


@dataclass(frozen=True)
class Measured:
    """A mean with its 95% interval over tasks."""

    mean: float
    low: float
    high: float


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
    jobs: tuple[str, str]

    @property
    def verdict(self) -> str:
        """What the interval of the difference allows one to say."""
        if self.difference.low > 0:
            return f"{self.second} is better"
        if self.difference.high < 0:
            return f"{self.first} is better"
        return "no difference that these tasks can show"


async def compare(
    config: TrainConfig,
    first: str,
    second: str,
    tasks: Taskset,
    *,
    runtime: Provider | None = None,
    reporter: Reporter | None = None,
    stop: StopSignal | None = None,
) -> Comparison:
    """Play `tasks` with both checkpoints, on the same seeds, `eval_group` times each."""
    chosen = list(tasks)
    check_tasks(chosen, "tasks to compare on")
    subagents = subagents_of(config, chosen)
    player = Player(config, runtime, reporter or SilentReporter(), stop or StopSignal(), subagents)
    client = connect()
    scores: list[dict[str, list[float]]] = []
    jobs: list[str] = []
    for checkpoint in (first, second):
        model = await client.chat_model(config.model, checkpoint)
        job = await Job.start(f"{config.model} {checkpoint}", group=config.eval_group)
        try:
            await player.play_held_out(await cast_of(client, model, config, subagents), chosen, job)
        finally:
            await job.finish()
        jobs.append(job.id)
        scores.append(
            {
                slug: rewards
                for slug, runs in job.results.items()
                if (rewards := [run.reward for run in runs if run.reward is not None])
            }
        )
    both = sorted(scores[0].keys() & scores[1].keys())
    if not both:
        raise UsageError("No task was measured with both checkpoints; hud jobs shows why.")
    differences = [[fmean(scores[1][slug]) - fmean(scores[0][slug])] for slug in both]
    return Comparison(
        model=config.model,
        first=first,
        second=second,
        first_score=_measured([scores[0][slug] for slug in both]),
        second_score=_measured([scores[1][slug] for slug in both]),
        difference=_measured(differences),
        tasks=len(both),
        jobs=(jobs[0], jobs[1]),
    )


def _measured(clusters: list[list[float]]) -> Measured:
    mean = sum(map(sum, clusters)) / sum(map(len, clusters))
    interval = clustered_interval(clusters)
    return (
        Measured(mean, mean, mean)
        if interval is None
        else Measured(mean, interval.low, interval.high)
    )
