"""Trends of a training run: changes of means with Student intervals, paired by task or between two spans of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from math import sqrt
from statistics import fmean, stdev, variance

from hud.eval.results.held_out_scores import Change
from hud.eval.results.intervals import student, with_interval
from hud.eval.results.paired_differences import FEWEST_TASKS, SIGNIFICANCE

CHANGE_LEVEL = 0.02
"""Significance level of a held-out change. Held-out scores are tested many times in a run: 5% would be too high."""
STAGNANT = 3
"""Evaluations over which held-out scores have to show a rise of the training reward."""
Evaluation = Mapping[str, Sequence[float | None]]
"""Rewards of an evaluation by task, one entry for each attempt; None: not measured."""


@dataclass(frozen=True)
class Trend:
    """A change of a mean with its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return with_interval(self.mean, self.low, self.high, signed=True)

    @property
    def rises(self) -> bool:
        """True if the whole interval is above zero."""
        return self.low > 0

    @property
    def falls(self) -> bool:
        """True if the whole interval is below zero."""
        return self.high < 0


@dataclass(frozen=True)
class GroupMean:
    """Mean reward of a step with its standard error over groups."""

    mean: float
    error: float
    groups: int
    """At least 2."""


def between(
    before: Sequence[float], after: Sequence[float], level: float = SIGNIFICANCE
) -> Trend | None:
    """Return the change from one span of steps to another (Welch, 1947); None for spans of fewer than two."""
    if len(before) < 2 or len(after) < 2:
        return None
    change = fmean(after) - fmean(before)
    parts = [(variance(span) / len(span), len(span) - 1) for span in (before, after)]
    return _welch(change, parts, level)


def change_of_means(
    before: Sequence[GroupMean], after: Sequence[GroupMean], level: float = SIGNIFICANCE
) -> Trend | None:
    """Return the change from one span of steps to another, by the spread within steps; None for an empty span."""
    if not before or not after:
        return None
    change = fmean(group_mean.mean for group_mean in after) - fmean(
        group_mean.mean for group_mean in before
    )
    parts = [
        ((group_mean.error / len(span)) ** 2, group_mean.groups - 1)
        for span in (before, after)
        for group_mean in span
    ]
    return _welch(change, parts, level)


def _welch(change: float, parts: Sequence[tuple[float, int]], level: float) -> Trend:
    """Return a change with its interval, from the variances that add up to its own and their degrees of freedom.

    The degrees of freedom of the sum are those of Satterthwaite (1946).
    """
    total = sum(part for part, _ in parts)
    if total == 0:
        return Trend(change, change, change)
    freedom = total**2 / sum(part**2 / free for part, free in parts)
    reach = student(level, freedom) * sqrt(total)
    return Trend(change, change - reach, change + reach)


def paired(differences: Sequence[float], level: float = SIGNIFICANCE) -> Trend | None:
    """Return the mean of paired differences with its interval; None for fewer than `FEWEST_TASKS`."""
    if len(differences) < FEWEST_TASKS:
        return None
    mean, count = fmean(differences), len(differences)
    reach = student(level, count - 1) * stdev(differences) / sqrt(count)
    return Trend(mean, mean - reach, mean + reach)


def change_of(evaluations: Mapping[int, Evaluation]) -> Change | None:
    """Return the change from the two best consecutive evaluations to the two newest; None for the first evaluation.

    `evaluations` are by their step, in order. Of three evaluations, the baseline is the first alone; of two, each is
    single. The level is `CHANGE_LEVEL` divided by the number of candidate pairs.
    """
    steps = list(evaluations)
    if len(steps) < 2:
        return None
    recent = steps[-2:] if len(steps) > 2 else steps[-1:]
    earlier = steps[: -len(recent)]
    pairs: list[tuple[int, ...]] = [*pairwise(earlier)] or [(earlier[0],)]
    means = {step: _mean(evaluation) for step, evaluation in evaluations.items()}
    best = max(pairs, key=lambda pair: fmean(means[step] for step in pair))
    differences = _differences(*([evaluations[step] for step in part] for part in (best, recent)))
    if not differences:
        return None
    trend = paired(differences, CHANGE_LEVEL / len(pairs))
    reference = fmean(means[step] for step in best)
    below = list(takewhile(lambda step: means[step] < reference, reversed(recent)))
    return Change(
        since=max(best, key=lambda step: means[step]),
        mean=fmean(differences),
        low=None if trend is None else trend.low,
        high=None if trend is None else trend.high,
        below=len(below),
    )


def recent_change_of(evaluations: Mapping[int, Evaluation]) -> Change | None:
    """Return the change over the last `STAGNANT` evaluations: from the one before them to the two newest; None with fewer."""
    steps = list(evaluations)
    if len(steps) <= STAGNANT:
        return None
    since, recent = steps[-1 - STAGNANT], steps[-2:]
    differences = _differences([evaluations[since]], [evaluations[step] for step in recent])
    if not differences:
        return None
    trend = paired(differences, CHANGE_LEVEL)
    below = list(
        takewhile(
            lambda step: _mean(evaluations[step]) < _mean(evaluations[since]), reversed(recent)
        )
    )
    return Change(
        since=since,
        mean=fmean(differences),
        low=None if trend is None else trend.low,
        high=None if trend is None else trend.high,
        below=len(below),
    )


def _differences(before: Sequence[Evaluation], after: Sequence[Evaluation]) -> list[float]:
    """Return differences of tasks measured in all evaluations; with fewer than `FEWEST_TASKS`, of their attempts."""
    by_task: list[float] = []
    by_attempt: list[float] = []
    for slug in before[0]:
        old, new = ([evaluation.get(slug, ()) for evaluation in part] for part in (before, after))
        task = [[_known(rewards) for rewards in part] for part in (old, new)]
        if all(all(part) for part in task):
            by_task.append(fmean(map(fmean, task[1])) - fmean(map(fmean, task[0])))
        for attempts in zip(*old, *new, strict=False):
            measured = _known(attempts)
            if len(measured) == len(attempts):
                by_attempt.append(fmean(measured[len(old) :]) - fmean(measured[: len(old)]))
    return by_task if len(by_task) >= FEWEST_TASKS else by_attempt


def _known(rewards: Sequence[float | None]) -> list[float]:
    return [reward for reward in rewards if reward is not None]


def _mean(evaluation: Evaluation) -> float:
    measured = [reward for task in evaluation.values() for reward in _known(task)]
    return fmean(measured) if measured else float("-inf")
