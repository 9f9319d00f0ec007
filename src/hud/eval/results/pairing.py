"""Two jobs on the same tasks, compared task by task: what got better, what got worse, what is noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb
from statistics import fmean
from typing import Literal

import numpy as np

from hud.eval.results.intervals import Interval, clustered_interval
from hud.eval.results.run_summary import RunSummary
from hud.eval.results.statistics import Floats, rewards_by_task

LEVEL = 0.05
"""A task that did not change is called better or worse this often, at most."""
MOST_SPLITS = 20_000
"""Ways to deal out the runs of a task up to which all are tried; beyond, so many are drawn."""

Verdict = Literal["better", "worse", "noise"]
Direction = Literal["better", "worse", "same"]


@dataclass(frozen=True)
class TaskChange:
    """One task in two jobs."""

    slug: str
    before: float
    """Mean reward."""
    after: float
    runs: tuple[int, int]
    """Measured runs of each job."""
    chance: float
    """p-value: probability that runs of one policy, split at random, differ as much; from 0 to 1."""

    @property
    def difference(self) -> float:
        """After minus before."""
        return self.after - self.before

    @property
    def direction(self) -> Direction:
        """Sign of the difference, whether or not chance explains it."""
        if self.difference == 0:
            return "same"
        return "better" if self.difference > 0 else "worse"

    @property
    def verdict(self) -> Verdict:
        """Better or worse where chance hardly explains it; with one run on either side it always may."""
        if self.chance > LEVEL or self.difference == 0:
            return "noise"
        return "better" if self.difference > 0 else "worse"


@dataclass(frozen=True)
class Pairing:
    """Two jobs, on the tasks that were measured in both."""

    changes: tuple[TaskChange, ...]
    """In the order of the first job."""
    before: float | None
    """Mean over the tasks of their mean rewards; None where no task was measured in both."""
    after: float | None
    difference: Interval | None
    """95% interval of the mean difference, over tasks; None for fewer than two tasks."""
    only_before: tuple[str, ...]
    """Tasks that were not measured in the second job."""
    only_after: tuple[str, ...]

    @property
    def counts(self) -> dict[Direction, int]:
        """Tasks by the sign of their difference: the tasks whose mean `verdict` judges."""
        found: dict[Direction, int] = {"better": 0, "worse": 0, "same": 0}
        for change in self.changes:
            found[change.direction] += 1
        return found

    @property
    def verdict(self) -> Verdict | None:
        """Conclusion from the interval of the mean difference. None: no task was measured in both jobs.

        A single task has no interval over tasks: the permutation test over its runs decides.
        """
        if not self.changes:
            return None
        if self.difference is None:
            return self.changes[0].verdict
        if self.difference.low <= 0 <= self.difference.high:
            return "noise"
        return "better" if self.difference.low > 0 else "worse"


def pair(before: Sequence[RunSummary], after: Sequence[RunSummary]) -> Pairing:
    """Compare the runs of two jobs; what was not measured enters nothing."""
    first, second = rewards_by_task(before), rewards_by_task(after)
    both = [slug for slug in first if slug in second]
    changes = tuple(
        TaskChange(
            slug=slug,
            before=fmean(first[slug]),
            after=fmean(second[slug]),
            runs=(len(first[slug]), len(second[slug])),
            chance=chance_of(tuple(sorted(first[slug])), tuple(sorted(second[slug]))),
        )
        for slug in both
    )
    differences = [[change.difference] for change in changes]
    return Pairing(
        changes=changes,
        before=fmean(change.before for change in changes) if changes else None,
        after=fmean(change.after for change in changes) if changes else None,
        difference=clustered_interval(differences),
        only_before=tuple(slug for slug in first if slug not in second),
        only_after=tuple(slug for slug in second if slug not in first),
    )


@lru_cache(maxsize=20_000)
def chance_of(before: tuple[float, ...], after: tuple[float, ...]) -> float:
    """Return the p-value of the two-sided permutation test of the difference of means (Fisher, 1935)."""
    values: Floats = np.array([*before, *after])
    size, total = len(before), len(values)
    observed = abs(float(values[:size].mean() - values[size:].mean()))
    if observed == 0:
        return 1.0
    if comb(total, size) <= MOST_SPLITS:
        splits = np.array(list(combinations(range(total), size)))
        return float(np.mean(_differences(values, splits) >= observed - 1e-12))
    orders = np.random.default_rng(0).permuted(np.tile(np.arange(total), (MOST_SPLITS, 1)), axis=1)
    as_far = int(np.sum(_differences(values, orders[:, :size]) >= observed - 1e-12))
    return (as_far + 1) / (MOST_SPLITS + 1)  # The split that was observed is one of them.


def _differences(values: Floats, splits: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Floats:
    """Absolute differences of the means of the values in each split and of those that are not."""
    size = splits.shape[1]
    sums = values[splits].sum(axis=1)
    result: Floats = np.abs(sums / size - (values.sum() - sums) / (len(values) - size))
    return result
