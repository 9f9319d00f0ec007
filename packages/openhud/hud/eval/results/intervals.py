"""The 95% interval of a mean: `clustered_interval` computes it and `with_interval` formats it, everywhere.

Wilson's score interval (1927) at the effective number of runs, p (1 - p) / SE^2 (Korn and Graubard, 1998), with Student's t.
It is computed with two standard errors, and the wider bounds count: the one clustered by task (df = tasks - 1), and the one
of independent runs (df = runs - 1). With few tasks the first is often too small by chance. Equal rewards have no standard
error: the same interval then bounds the share of runs with another reward, which may lie anywhere in the range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import atan, cos, exp, expm1, inf, lgamma, pi, sqrt, tan
from statistics import NormalDist

CONFIDENCE = 0.95
_DIGITS = 12
"""Decimal places to which sums are rounded: SQL and Python add in different orders."""
_PANELS = 64
"""Panels of Simpson's rule: relative error below 1e-9."""


@dataclass(frozen=True)
class Interval:
    """A 95% interval."""

    low: float
    high: float


@dataclass(frozen=True)
class TaskRewards:
    """Sums over the measured runs of one task."""

    total: float
    runs: int
    squares: float
    """Sum of squared rewards."""
    least: float
    greatest: float

    @classmethod
    def of(cls, rewards: Sequence[float]) -> TaskRewards:
        """Sum the rewards of a task, at least one."""
        squares = sum(reward * reward for reward in rewards)
        return cls(sum(rewards), len(rewards), squares, min(rewards), max(rewards))


def clustered_interval(clusters: Iterable[Sequence[float]]) -> Interval | None:
    """Return the interval of the mean over all values; a cluster holds the rewards of one task.

    None for fewer than two non-empty clusters. The order of the clusters does not matter.
    """
    return interval_of_sums([TaskRewards.of(cluster) for cluster in clusters if cluster])


def interval_of_sums(tasks: Sequence[TaskRewards]) -> Interval | None:
    """Return `clustered_interval` of tasks given by their sums.

    Rewards outside [0, 1] widen the range in which the mean lies to the least and the greatest of them.
    """
    if len(tasks) < 2:
        return None
    least, greatest = min(task.least for task in tasks), max(task.greatest for task in tasks)
    low = min(0.0, least)
    width = max(1.0, greatest) - low
    # Order and rounding are fixed, so that equal rewards have equal intervals in SQL and Python.
    sums = sorted(
        (round((float(task.total) - task.runs * low) / width, _DIGITS), task.runs) for task in tasks
    )
    count, runs = len(sums), sum(size for _, size in sums)
    mean = min(max(sum(total for total, _ in sums) / runs, 0.0), 1.0)
    squares = sum(sorted(round(float(task.squares), _DIGITS) for task in tasks)) / runs
    variance = (squares - (low + width * mean) ** 2) / width**2
    if least == greatest or variance <= 10.0**-_DIGITS or mean in (0.0, 1.0):
        share = _unseen(count, runs)
        return Interval(low + width * mean * (1 - share), low + width * (mean + (1 - mean) * share))
    residuals = sum((total - size * mean) ** 2 for total, size in sums) / runs**2
    errors = (residuals * count / (count - 1), variance / (runs - 1))
    effective = [mean * (1 - mean) / error if error > 0 else inf for error in errors]
    by_task = _wilson(mean, effective[0], count - 1)
    by_run = _wilson(mean, effective[1], runs - 1)
    return Interval(
        low + width * min(by_task.low, by_run.low), low + width * max(by_task.high, by_run.high)
    )


@lru_cache(maxsize=10_000)
def student(level: float, freedom: float) -> float:
    """Return the two-sided quantile of Student's t at significance `level`; `freedom`: degrees of freedom, at least 1.

    Newton's method from the approximation of Wallace (1959), on the probability as an integral: with t = sqrt(freedom)
    tan(a), the density of `a` is proportional to cos(a)^(freedom - 1).
    """
    normal = NormalDist().inv_cdf(1 - level / 2)
    scaled = normal * (8 * freedom + 3) / (8 * freedom + 1)
    angle = atan(sqrt(expm1(scaled**2 / freedom)))
    total = sqrt(pi) / 2 * exp(lgamma(freedom / 2) - lgamma((freedom + 1) / 2))
    for _ in range(4):
        missing = total * (1 - level) - _integral(angle, freedom - 1)
        angle += missing / cos(angle) ** (freedom - 1)
    return sqrt(freedom) * tan(angle)


def with_interval(
    mean: float | None, low: float | None, high: float | None, *, signed: bool = False
) -> str:
    """Format a mean with its interval: `0.190 [0.000, 0.571]`; `signed`: `+0.031 [-0.010, +0.072]`.

    Without an interval, the mean alone; without a mean, a dash.
    """
    if mean is None:
        return "–"
    shown = bounds(low, high, signed=signed)
    return f"{mean:+.3f} {shown}".rstrip() if signed else f"{mean:.3f} {shown}".rstrip()


def bounds(low: float | None, high: float | None, *, signed: bool = False) -> str:
    """Format an interval alone: `[0.000, 0.571]`; "" without one."""
    if low is None or high is None:
        return ""
    return f"[{low:+.3f}, {high:+.3f}]" if signed else f"[{low:.3f}, {high:.3f}]"


def _unseen(count: int, runs: int) -> float:
    """Return the upper bound of the share of other rewards, where all runs of `count` tasks have one reward."""
    effective = ((runs * (count - 1) / count, count - 1), (runs - 1.0, runs - 1))
    return max(_wilson(0.0, size, freedom).high for size, freedom in effective)


def _wilson(mean: float, effective: float, freedom: int) -> Interval:
    """Return the score interval of a mean in [0, 1] over an effective number of runs."""
    if effective == inf:
        return Interval(mean, mean)
    squared = student(1 - CONFIDENCE, freedom) ** 2
    center = (effective * mean + squared / 2) / (effective + squared)
    reach = sqrt(squared * (effective * mean * (1 - mean) + squared / 4)) / (effective + squared)
    return Interval(min(mean, max(0.0, center - reach)), max(mean, min(1.0, center + reach)))


def _integral(angle: float, power: float) -> float:
    """Return the integral of cos^power from 0 to `angle`, by Simpson's rule."""
    step = angle / _PANELS
    weights = (
        1 if place in (0, _PANELS) else 4 if place % 2 else 2 for place in range(_PANELS + 1)
    )
    heights = (float(cos(step * place) ** power) for place in range(_PANELS + 1))
    return step / 3 * sum(weight * height for weight, height in zip(weights, heights, strict=True))
