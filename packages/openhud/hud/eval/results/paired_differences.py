"""Paired comparison of two sets of runs on the same tasks: differences, intervals, p-values, and the evidence still missing.

The unit is the task: a task's difference is the mean over its seeds, paired by attempt. Differences of tasks are resampled
by the wild cluster bootstrap with Rademacher weights and the null imposed (Cameron, Gelbach and Miller, 2008), which for
a mean is the sign-flip test. Its inversion: the means of random subsets of tasks are above or below the true difference
with equal probability (Hartigan, 1969), so the interval's bounds are two quantiles of them. If both sides are the same
policy it is exact for any number of tasks; a percentile bootstrap is too narrow below about thirty tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import ceil, comb, log2
from statistics import NormalDist, fmean, stdev, variance
from typing import Literal, Protocol

import numpy as np

from hud.eval.results.job_statistics import Floats

SIGNIFICANCE = 0.05
"""Two-sided significance level: maximum probability of a false better or worse."""
POWER = 0.8
"""Power for `Difference.needed` and `Difference.detectable`."""
RESAMPLES = 4_999
"""Number of random subsets at 5%; with twelve tasks or fewer all subsets are used."""
MOST_RESAMPLES = 49_999
"""Number of random subsets at the lower levels of several looks."""
MOST_SPLITS = 20_000
"""Maximum number of permutations of a task's runs that are enumerated; beyond it, that many are sampled."""
_SEED = 0
_CELLS_AT_ONCE = 4_000_000
_DIGITS = 12
"""Decimal places to which means are rounded, so that sums in different orders tie with zero equally."""

Rewards = Mapping[str, Sequence[float | None]]
"""Rewards by task, one entry for each attempt; None: not measured."""
Verdict = Literal["better", "worse", "noise"]
Direction = Literal["better", "worse", "same"]


@dataclass(frozen=True)
class TaskChange:
    """A task on both sides."""

    slug: str
    before: float
    """Mean reward."""
    after: float
    runs: tuple[int, int]
    """Number of measured runs of each side."""
    chance: float
    """p-value: probability that runs of one policy, split at random, differ as much; from 0 to 1."""
    identical: bool
    """True if both sides have equal rewards, run by run."""
    by_seed: tuple[float, ...] = ()
    """Difference of each pair of runs; empty if runs cannot be paired."""

    @property
    def difference(self) -> float:
        """After minus before."""
        return self.after - self.before

    @property
    def direction(self) -> Direction:
        """Sign of the difference, regardless of significance."""
        return _direction(self.difference)

    @property
    def verdict(self) -> Verdict:
        """Better or worse if the difference is significant; never with a single run on either side."""
        return _verdict(self.difference, self.chance)


@dataclass(frozen=True)
class Needed:
    """Sample size that would show a difference with `POWER`."""

    tasks: int
    """Number of tasks, with the present number of runs of each."""
    runs: int | None
    """Runs of each of the same tasks; None if the variance between tasks is too large for more runs to suffice."""


@dataclass(frozen=True)
class Difference:
    """Mean difference of some tasks, after minus before."""

    name: str
    """Subset as `COLUMN=VALUE`; `all tasks`."""
    tasks: int
    runs: float
    """Mean number of runs of a task, on the side with fewer."""
    mean: float
    low: float | None
    """95% interval, wider for several looks; None with fewer than `fewest_units` of them."""
    high: float | None
    p_value: float
    """Two-sided p-value of no difference."""
    adjusted: float
    """p-value after the corrections for the number of subsets (Holm) and of looks (Bonferroni)."""
    unit: Literal["tasks", "runs"]
    """Resampled unit. `runs`, for fewer than `fewest_units` tasks: the verdict applies to these tasks only."""
    deviation: float
    """Standard deviation of the units' differences."""
    noise: float
    """Variance of the difference of a pair of runs within a task."""
    looks: int
    """Comparisons of one series among which the error rate of 5% is divided."""
    identical: bool
    """True if both sides have equal rewards on every task, run by run."""

    @property
    def verdict(self) -> Verdict:
        """Better or worse if the difference is significant after the correction for all subsets."""
        return _verdict(self.mean, self.adjusted)

    @property
    def units(self) -> float:
        """Number of the resampled units."""
        return self.tasks if self.unit == "tasks" else self.tasks * self.runs

    @property
    def _reach(self) -> float:
        """Standard errors between zero and a difference detected with `POWER`: 2.8 at one look."""
        normal = NormalDist()
        return normal.inv_cdf(1 - SIGNIFICANCE / self.looks / 2) + normal.inv_cdf(POWER)

    @property
    def detectable(self) -> float:
        """Smallest difference that this number of tasks and runs would show with `POWER`."""
        return float(self._reach * self.deviation / max(self.units, 1) ** 0.5)

    def needed(self, threshold: float = 0.0) -> Needed | None:
        """Return the evidence that shows `mean` to differ from `threshold`; None if they are equal."""
        distance = abs(self.mean - threshold)
        if distance < 10**-_DIGITS:
            return None
        units = max(fewest_units(self.looks), ceil((self._reach * self.deviation / distance) ** 2))
        if self.unit == "runs":
            return Needed(ceil(units / max(self.runs, 1.0)), ceil(units / self.tasks))
        # Variance of a task's difference: that of its true difference, and its runs' noise.
        true = max(0.0, self.deviation**2 - self.noise / self.runs)
        left = self.tasks * (distance / self._reach) ** 2 - true
        runs = ceil(self.noise / left) if left > 0 and self.noise > 0 else None
        return Needed(units, runs)


@dataclass(frozen=True)
class Pairing:
    """Two sets of runs, on the tasks that were measured in both."""

    changes: tuple[TaskChange, ...]
    """In the order of the first side."""
    overall: Difference | None
    """None if no task was measured on both sides."""
    subsets: tuple[Difference, ...]
    only_before: tuple[str, ...]
    """Tasks that were not measured on the second side."""
    only_after: tuple[str, ...]

    @property
    def before(self) -> float | None:
        """Mean over the tasks of their mean rewards; None if no task was measured on both sides."""
        return fmean(change.before for change in self.changes) if self.changes else None

    @property
    def after(self) -> float | None:
        """The same of the second side."""
        return fmean(change.after for change in self.changes) if self.changes else None

    @property
    def counts(self) -> dict[Direction, int]:
        """Tasks by the sign of their difference: the tasks whose mean `verdict` judges."""
        counts: dict[Direction, int] = {"better": 0, "worse": 0, "same": 0}
        for change in self.changes:
            counts[change.direction] += 1
        return counts

    @property
    def verdict(self) -> Verdict | None:
        """Conclusion about all tasks: better or worse if the interval excludes zero. None: no task on both sides.

        A single task has no interval: the permutation test over runs decides.
        """
        if self.overall is None:
            return None
        if self.overall.low is None and len(self.changes) == 1:
            return self.changes[0].verdict
        return self.overall.verdict


class Attempt(Protocol):
    """A run: task, attempt and reward."""

    @property
    def slug(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def reward(self) -> float | None: ...


def rewards_by_attempt(runs: Iterable[Attempt]) -> dict[str, list[float | None]]:
    """Return the rewards of each task in the order of its attempts, which have the same seeds in every job."""
    rewards: dict[str, list[float | None]] = {}
    for run in sorted(runs, key=lambda run: run.attempt):
        rewards.setdefault(run.slug, []).append(run.reward)
    return rewards


def fewest_units(looks: int = 1) -> int:
    """Return the minimum number of tasks, or of pairs of runs, for a verdict: 6 at one look.

    With five, the most extreme of 2^5 sign patterns has a probability of 6%.
    """
    return ceil(log2(2 * looks / SIGNIFICANCE))


FEWEST_TASKS = fewest_units()
"""`fewest_units` at one look."""


def pair(
    before: Rewards,
    after: Rewards,
    subsets: Mapping[str, Collection[str]] | None = None,
    looks: int = 1,
) -> Pairing:
    """Compare rewards task by task, ignoring unmeasured runs. `subsets`: names to slugs of their tasks.

    Runs are paired by attempt if a task has equally many attempts on both sides; pairs with an unmeasured run are omitted.
    `looks`: comparisons of one series, at least 1, of which this is one; the error rate of 5% is divided among them.
    """
    by_slug = {slug: _change(slug, before[slug], after.get(slug, ())) for slug in before}
    changes = tuple(change for change in by_slug.values() if change is not None)
    parts = []
    for name, slugs in (subsets or {}).items():
        inside = [change for change in changes if change.slug in slugs]
        if inside:
            parts.append(_difference(inside, name, looks))
    adjusted = holm([part.adjusted for part in parts])
    paired = {change.slug for change in changes}
    return Pairing(
        changes=changes,
        overall=_difference(changes, "all tasks", looks) if changes else None,
        subsets=tuple(
            replace(part, adjusted=value) for part, value in zip(parts, adjusted, strict=True)
        ),
        only_before=tuple(
            slug for slug in before if slug not in paired and _measured(before[slug])
        ),
        only_after=tuple(slug for slug in after if slug not in paired and _measured(after[slug])),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's step-down method (1979): family-wise error at most the level."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


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
    return (as_far + 1) / (MOST_SPLITS + 1)  # The observed split is one of them.


def _change(
    slug: str, before: Sequence[float | None], after: Sequence[float | None]
) -> TaskChange | None:
    paired = len(before) == len(after)
    if paired:
        pairs = [
            (earlier, other)
            for earlier, other in zip(before, after, strict=True)
            if earlier is not None and other is not None
        ]
        first, second = [earlier for earlier, _ in pairs], [other for _, other in pairs]
    else:
        first, second = _measured(before), _measured(after)
    if not first or not second:
        return None
    return TaskChange(
        slug=slug,
        before=fmean(first),
        after=fmean(second),
        runs=(len(first), len(second)),
        chance=chance_of(tuple(sorted(first)), tuple(sorted(second))),
        identical=first == second,
        by_seed=tuple(b - a for a, b in zip(first, second, strict=True)) if paired else (),
    )


def _difference(changes: Sequence[TaskChange], name: str, looks: int) -> Difference:
    """Return the difference of some tasks; with too few tasks, runs are resampled."""
    fewest = fewest_units(looks)
    ordered = sorted(changes, key=lambda change: change.slug)
    unit: Literal["tasks", "runs"] = "tasks" if len(ordered) >= fewest else "runs"
    values = [change.difference for change in ordered]
    if unit == "runs":
        values = [value for change in ordered for value in change.by_seed] or values
    enough = len(values) >= fewest
    low, high, p_value = _resampled(tuple(values), looks) if enough else (None, None, 1.0)
    within = [variance(change.by_seed) for change in ordered if len(change.by_seed) > 1]
    return Difference(
        name=name,
        tasks=len(ordered),
        runs=fmean(min(change.runs) for change in ordered),
        mean=fmean(values),
        low=low,
        high=high,
        p_value=p_value,
        adjusted=min(1.0, looks * p_value),
        unit=unit,
        deviation=stdev(values) if len(values) > 1 else 0.0,
        noise=fmean(within) if within else 0.0,
        looks=looks,
        identical=all(change.identical for change in ordered),
    )


@lru_cache(maxsize=10_000)
def _resampled(values: tuple[float, ...], looks: int) -> tuple[float, float, float]:
    """Return the interval of the mean and the two-sided p-value of zero; at least `fewest_units(looks)` values.

    p of "at most x" is the share of subset means at or below x, including the empty subset.
    """
    resamples = min(RESAMPLES * looks, MOST_RESAMPLES)
    means = np.sort(np.round(_subset_means(np.array(values), resamples), _DIGITS))
    total = len(means) + 1
    # With more looks than resamples can resolve, the interval is the whole range.
    tail = max(0, int(SIGNIFICANCE / looks / 2 * total) - 1)
    at_most, at_least = 1 + int(np.sum(means <= 0)), 1 + int(np.sum(means >= 0))
    p_value = min(1.0, 2 * min(at_most, at_least) / total)
    return float(means[tail]), float(means[-1 - tail]), p_value


def _subset_means(values: Floats, resamples: int) -> Floats:
    """Return the means of all non-empty subsets, or of `resamples` random ones."""
    count = len(values)
    if 2**count - 1 <= resamples:
        chosen = (np.arange(1, 2**count)[:, None] >> np.arange(count)) & 1
        exact: Floats = chosen @ values / chosen.sum(axis=1)
        return exact
    rng = np.random.default_rng(_SEED)
    chunk = max(1, _CELLS_AT_ONCE // count)
    means = []
    for start in range(0, resamples, chunk):
        chosen = rng.integers(0, 2, size=(min(chunk, resamples - start), count), dtype=np.int8)
        sizes = chosen.sum(axis=1, dtype=np.int64)
        means.append((chosen @ values)[sizes > 0] / sizes[sizes > 0])
    return np.concatenate(means)


def _measured(rewards: Sequence[float | None]) -> list[float]:
    return [reward for reward in rewards if reward is not None]


def _direction(difference: float) -> Direction:
    if difference == 0:
        return "same"
    return "better" if difference > 0 else "worse"


def _verdict(difference: float, p_value: float) -> Verdict:
    direction = _direction(difference)
    return "noise" if p_value > SIGNIFICANCE or direction == "same" else direction


def _differences(values: Floats, splits: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Floats:
    """Return, for each split, the absolute difference of the means of its values and of the others."""
    size = splits.shape[1]
    sums = values[splits].sum(axis=1)
    result: Floats = np.abs(sums / size - (values.sum() - sums) / (len(values) - size))
    return result
