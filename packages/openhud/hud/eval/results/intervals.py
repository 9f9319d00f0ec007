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
from math import exp, expm1, inf, lgamma, log, log1p, sqrt

CONFIDENCE = 0.95
_DIGITS = 12
"""Decimal places to which sums are rounded: SQL and Python add in different orders."""
_MOST_TERMS = 10_000
"""Most terms of a continued fraction; some tens suffice for thousands of degrees of freedom."""
_TINY = 1e-300


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

    The significance of t is I_x(freedom / 2, 1/2) with x = freedom / (freedom + t²); it rises with x, whose logarithm is bisected.
    """
    low, high = -745.0, 0.0  # Below e^-745 is no positive float.
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if _beta(exp(middle), freedom / 2) < level else (low, middle)
    return sqrt(freedom * expm1(-low))


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


def _beta(x: float, a: float) -> float:
    """Return the regularized incomplete beta function I_x(a, 1/2), relative error below 1e-10."""
    b = 0.5
    if not 0 < x < 1:
        return float(x >= 1)
    factor = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return factor * _fraction(x, a, b) / a
    return 1 - factor * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function (Abramowitz and Stegun 26.5.8), by Lentz's method."""
    value, c, d = 1.0, 1.0, 0.0
    for step in range(_MOST_TERMS):
        m = step // 2
        term = 1.0
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        elif step:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / ((1 + term * d) or _TINY)
        c = (1 + term / c) or _TINY
        value *= c * d
        if step and abs(c * d - 1) < 1e-14:
            break
    return value - 1
