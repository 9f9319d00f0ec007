"""Scores of runs on a benchmark: each run's percentile against the baseline of its task, and their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from hud.benchmarks.baseline.baseline_file import BaselineFile, PersonResult, baseline_file
from hud.benchmarks.baseline.percentile import FEWEST_PEOPLE, Point, score
from hud.benchmarks.benchmark import Benchmark
from hud.benchmarks.registry import benchmark as benchmark_of
from hud.errors import NotFoundError
from hud.eval import RunSummary
from hud.eval.results.intervals import Interval, clustered_interval
from hud.eval.results.job_statistics import rewards_by_task

NO_PEOPLE = "reference-anchored, no human baseline yet"


@dataclass(frozen=True)
class TaskBaseline:
    """Results of people on one task, and the anchors of its scale."""

    task: str
    people: tuple[PersonResult, ...]
    """First attempts, one for each person."""
    anchors: tuple[Point, ...]
    """Reward on this task and declared standing of each reference solver."""

    @property
    def human(self) -> bool:
        """Say whether enough people did the task for their rewards to count."""
        return len(self.people) >= FEWEST_PEOPLE

    @property
    def median_reward(self) -> float | None:
        """Median over people; None where there are none."""
        return median(result.reward for result in self.people) if self.people else None

    @property
    def median_seconds(self) -> float | None:
        """Median over people; None where there are none."""
        return median(result.seconds for result in self.people) if self.people else None

    def score(self, reward: float) -> float:
        """Return the percentile of a run's reward, in [0, 1] (see `percentile.score`)."""
        return score(reward, [result.reward for result in self.people], self.anchors)


@dataclass(frozen=True)
class Baseline:
    """The baseline of a benchmark at the version of its package."""

    benchmark: Benchmark
    file: BaselineFile

    @classmethod
    def of(cls, benchmark: Benchmark) -> Baseline:
        """Read the baseline of a benchmark."""
        return cls(benchmark, baseline_file(benchmark.name))

    @cached_property
    def attempts(self) -> dict[str, dict[str, PersonResult]]:
        """First attempts at this version's tasks: by task, then by person."""
        attempts: dict[str, dict[str, PersonResult]] = {}
        for result in self.file.people:
            if result.version == self.benchmark.package.version:
                attempts.setdefault(result.task, {}).setdefault(result.person, result)
        return attempts

    def references_on(self, slug: str) -> dict[str, float]:
        """Return the rewards of reference solvers on a task, those that were measured at this version."""
        rewards = {
            name: result.on(slug)
            for name, result in self.file.references.items()
            if name in self.benchmark.references
            and result.version == self.benchmark.package.version
        }
        return {name: reward for name, reward in rewards.items() if reward is not None}

    def task(self, slug: str) -> TaskBaseline:
        """Return the baseline of a task."""
        standing = self.benchmark.references
        anchors = tuple(
            (reward, standing[name].standing) for name, reward in self.references_on(slug).items()
        )
        return TaskBaseline(slug, tuple(self.attempts.get(slug, {}).values()), anchors)


@dataclass(frozen=True)
class BaselineScore:
    """Mean percentile of a job's runs."""

    mean: float
    interval: Interval | None
    """95%, over tasks; None for fewer than two."""
    tasks: int
    human_tasks: int
    """Tasks with enough people to be measured against them."""

    @property
    def label(self) -> str:
        """Source of the percentile, people or references; shown wherever the figure is."""
        if not self.human_tasks:
            return NO_PEOPLE
        if self.human_tasks == self.tasks:
            return "percentile of people"
        return (
            f"percentile of people on {self.human_tasks:,} of {self.tasks:,} tasks, the others reference-anchored, "
            "no human baseline yet"
        )


def baseline_score(benchmark: str | None, runs: Sequence[RunSummary]) -> BaselineScore | None:
    """Return the score of runs; None for tasks of no benchmark, and where nothing was measured."""
    by_task = rewards_by_task(runs)
    if benchmark is None or not by_task:
        return None
    try:
        baseline = Baseline.of(benchmark_of(benchmark))
    except NotFoundError:  # A job of another version of this program.
        return None
    return _mean(baseline, by_task)


def _mean(baseline: Baseline, rewards: Mapping[str, Sequence[float]]) -> BaselineScore:
    baselines = [baseline.task(slug) for slug in rewards]
    scores = [[task.score(reward) for reward in rewards[task.task]] for task in baselines]
    return BaselineScore(
        mean=fmean(task_score for task in scores for task_score in task),
        interval=clustered_interval(scores),
        tasks=len(baselines),
        human_tasks=sum(task.human for task in baselines),
    )
