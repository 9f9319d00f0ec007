"""Comparison of two checkpoints on the same tasks and seeds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from hud.client import connect
from hud.errors import UsageError
from hud.eval.job import Job
from hud.eval.results.anytime_interval import anytime_interval
from hud.eval.results.intervals import clustered_interval
from hud.eval.results.paired_differences import (
    SIGNIFICANCE,
    Difference,
    Pairing,
    Rewards,
    pair,
    rewards_by_attempt,
)
from hud.eval.results.promotion_gate import (
    Subsets,
    difference_shown,
    evidence,
    subsets_of,
)
from hud.eval.results.task_families import few_families
from hud.inference.models import chat_model
from hud.trace.ids import is_id
from hud.train.config import TrainConfig
from hud.train.monitoring.progress import Reporter
from hud.train.rollouts.sampling import Models, Rollouts, load_tasks
from hud.train.rollouts.seeds import seed_of

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.environment.templates.task import Provider
    from hud.eval.scheduler import StopSignal
    from hud.eval.tasksets.taskset import Taskset

FEWEST_AT_ONCE = 5
"""Least tasks that are played between two looks."""
_MOST_LOOKS = 20


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
    pairing: Pairing
    difference: Difference
    """Second minus first."""
    jobs: tuple[str, ...] = ()
    anytime: tuple[float, float] | None = None
    """Interval that allows for a look after every part; None: all tasks were to be played."""

    @property
    def verdict(self) -> str:
        """Verdict by the interval of the difference."""
        if self.difference.identical:
            return "no difference"
        if self.anytime is not None:
            better = certain(self.anytime)
            if better is None:
                return "no difference that these tasks can show"
            return f"{self.second if better else self.first} is better, for certain"
        if self.pairing.verdict in (None, "noise"):
            return "no difference that these tasks can show"
        return f"{self.second if self.pairing.verdict == 'better' else self.first} is better"

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data, without its tasks."""
        return {
            "model": self.model,
            "first": self.first,
            "second": self.second,
            "first_score": asdict(self.first_score),
            "second_score": asdict(self.second_score),
            "difference": difference_shown(self.difference),
            "subsets": [difference_shown(subset) for subset in self.pairing.subsets],
            "tasks": self.difference.tasks,
            "jobs": self.jobs,
            "anytime": self.anytime,
            "verdict": self.verdict,
            "evidence": evidence(self.difference),
            "note": few_families(change.slug for change in self.pairing.changes),
        }


async def compare(
    config: TrainConfig,
    first: str,
    second: str,
    tasks: Taskset,
    *,
    runtime: Provider,
    until_certain: bool = False,
) -> Comparison:
    """Play `tasks` with both checkpoints, on the same seeds, `eval_group` times each; see `play_both`."""
    sides = [(config, first), (config, second)]
    jobs = await play_both(sides, tasks, runtime=runtime, until_certain=until_certain)
    before, after = (rewards_by_attempt(job.runs) for job in jobs)
    subsets = subsets_of({task.slug: task.columns for task in tasks})
    comparison = compared(config.model, first, second, before, after, subsets)
    anytime = anytime_difference(comparison.pairing, config.seed) if until_certain else None
    return replace(comparison, jobs=(jobs[0].id, jobs[1].id), anytime=anytime)


async def play_both(
    sides: Sequence[tuple[TrainConfig, str]],
    tasks: Taskset,
    *,
    runtime: Provider | None = None,
    until_certain: bool = False,
) -> list[Job]:
    """Play tasks with the checkpoints of both sides; return their jobs.

    With `until_certain`, tasks are played in random order and in parts of at least `FEWEST_AT_ONCE`, until `anytime_difference` excludes 0.
    """
    chosen = load_tasks(tasks, "", "tasks to compare on")
    if not until_certain:
        return [
            await play(config, checkpoint, tasks, runtime=runtime) for config, checkpoint in sides
        ]
    seed = sides[0][0].seed
    chosen.sort(key=lambda task: _place(task.slug, seed))
    at_once = max(FEWEST_AT_ONCE, len(chosen) // _MOST_LOOKS)
    async with AsyncExitStack() as stack:
        players = [
            await stack.enter_async_context(_playing(config, checkpoint, tasks, runtime=runtime))
            for config, checkpoint in sides
        ]
        for start in range(0, len(chosen), at_once):
            for player in players:
                await player.play(chosen[start : start + at_once])
            before, after = (rewards_by_attempt(player.job.runs) for player in players)
            if certain(anytime_difference(pair(before, after), seed)) is not None:
                break
    return [player.job for player in players]


def anytime_difference(pairing: Pairing, seed: int) -> tuple[float, float]:
    """Return the interval of the mean difference of rewards in [0, 1] over tasks, for any number of looks."""
    in_order = sorted(pairing.changes, key=lambda change: _place(change.slug, seed))
    differences = [change.difference for change in in_order]
    return anytime_interval(differences, -1.0, 1.0, SIGNIFICANCE)


def _place(slug: str, seed: int) -> int:
    """Return the key of a task in the random order of play, which no run can influence."""
    return seed_of("comparison", seed, slug)


def certain(interval: tuple[float, float]) -> bool | None:
    """Return whether the second side is better; None: the interval includes 0."""
    return None if interval[0] <= 0 <= interval[1] else interval[0] > 0


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
    """Play `tasks` with a checkpoint, with held-out settings, in a separate job, which is passed to `began`."""
    playing = _playing(config, checkpoint, tasks, runtime=runtime, reporter=reporter, stop=stop)
    async with playing as player:
        began(player.job)
        await player.play(player.tasks)
    return player.job


@dataclass(frozen=True)
class _Player:
    """A checkpoint that plays tasks in a job."""

    rollouts: Rollouts
    models: Models
    tasks: list[Task]
    job: Job

    async def play(self, tasks: list[Task]) -> None:
        """Play some tasks."""
        await self.rollouts.play_held_out(self.models, tasks, self.job)


@asynccontextmanager
async def _playing(
    config: TrainConfig,
    checkpoint: str,
    tasks: Taskset,
    *,
    runtime: Provider | None = None,
    reporter: Reporter | None = None,
    stop: StopSignal | None = None,
) -> AsyncIterator[_Player]:
    """Open a job for the runs of a checkpoint, and finish it."""
    chosen = load_tasks(tasks, "", "tasks to compare on")
    rollouts = await Rollouts.open(config, chosen, runtime=runtime, reporter=reporter, stop=stop)
    model = await chat_model(config.model, checkpoint, client=connect())
    job = await Job.start(
        f"{config.model} evaluation at {_short(checkpoint)}",
        group=config.eval_group,
        planned=len(chosen) * config.eval_group,
        taskset=tasks.name,
        taskset_id=tasks.taskset_id,
    )
    try:
        yield _Player(rollouts, await rollouts.models(model), chosen, job)
    finally:
        job.interrupted = job.interrupted or rollouts.stop.stopping
        await job.finish()


def _short(checkpoint: str) -> str:
    """Return a checkpoint's name, or the start of its id."""
    return checkpoint[:8] if is_id(checkpoint) else checkpoint


def compared(
    model: str,
    first: str,
    second: str,
    first_rewards: Rewards,
    second_rewards: Rewards,
    subsets: Subsets | None = None,
) -> Comparison:
    """Compare rewards by task. Raises `UsageError` if no task was measured with both checkpoints."""
    pairing = pair(first_rewards, second_rewards, subsets)
    if pairing.overall is None:
        raise UsageError("No task was measured with both checkpoints; hud jobs shows why.")
    both = [change.slug for change in pairing.changes]
    return Comparison(
        model=model,
        first=first,
        second=second,
        first_score=_measured([first_rewards[slug] for slug in both]),
        second_score=_measured([second_rewards[slug] for slug in both]),
        pairing=pairing,
        difference=pairing.overall,
    )


def _measured(rewards: Sequence[Sequence[float | None]]) -> Measured:
    clusters = [[reward for reward in group if reward is not None] for group in rewards]
    mean = sum(map(sum, clusters)) / sum(map(len, clusters))
    interval = clustered_interval(clusters)
    return Measured(mean) if interval is None else Measured(mean, interval.low, interval.high)
