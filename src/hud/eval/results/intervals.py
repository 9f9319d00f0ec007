"""The 95% interval of a mean: `clustered_interval` computes it and `with_interval` formats it, everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

RESAMPLES = 2_000
"""Number of bootstrap resamples, equal on all pages."""
LEVEL = 0.95
_SEED = 0
_CELLS_AT_ONCE = 4_000_000
_DIGITS = 12
"""Decimal places to which sums are rounded: SQL and Python add in different orders."""


@dataclass(frozen=True)
class Interval:
    """A 95% interval."""

    low: float
    high: float


def clustered_interval(clusters: Sequence[Sequence[float]]) -> Interval | None:
    """Return the bootstrap interval of the mean over all values, resampling whole clusters (tasks).

    None for fewer than two clusters. The order of the clusters does not matter. With few tasks the interval is too narrow,
    as with any percentile bootstrap.
    """
    return interval_of_sums([(sum(cluster), len(cluster)) for cluster in clusters])


def interval_of_sums(sums: Sequence[tuple[float, int]]) -> Interval | None:
    """Return `clustered_interval` of clusters given by sum and size."""
    known = sorted((round(float(total), _DIGITS), size) for total, size in sums if size)
    return _bootstrap(tuple(known)) if len(known) > 1 else None


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


@lru_cache(maxsize=10_000)
def _bootstrap(known: tuple[tuple[float, int], ...]) -> Interval:
    import numpy as np  # NumPy is imported on demand.

    totals, sizes = np.array(known, dtype=np.float64).T
    rng = np.random.default_rng(_SEED)
    count = len(known)
    chunk = max(1, _CELLS_AT_ONCE // count)
    means = []
    for start in range(0, RESAMPLES, chunk):
        drawn = rng.integers(0, count, size=(min(chunk, RESAMPLES - start), count))
        means.append(totals[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    tail = (1.0 - LEVEL) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1.0 - tail])
    return Interval(float(low), float(high))
