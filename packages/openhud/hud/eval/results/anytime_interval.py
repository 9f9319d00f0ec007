"""Interval of a mean that holds at every moment of a measurement: one may stop as soon as it tells enough.

A confidence sequence by betting (Waudby-Smith and Ramdas, arXiv 2010.09686, Theorem 3 and section 4.2, one-sided): for a mean m of
values x in [0, 1], the capital

    K(m) = Π (1 + λ_i (x_i - m))        λ_i = min(sqrt(2 log(1/α) / (σ²_(i-1) i log(1 + i))), c / m)

never exceeds 1/α with probability 1 - α if m is the true mean, whenever one looks (Ville's inequality). σ² is the variance of the
values before, so that a bet does not know its outcome. The lower bound is the largest m that is refuted; the upper one is that of
1 - x. The values must come in an order that is independent of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log, log1p, sqrt

import numpy as np

from hud.eval.results.job_statistics import Floats

_CAP = 0.5
"""c: largest share of the capital that a bet may lose."""
_HALVINGS = 30
"""Steps of the search for a bound: 1e-9 of the range."""


def anytime_interval(
    values: Iterable[float], low: float, high: float, significance: float
) -> tuple[float, float]:
    """Return bounds of the mean of values in [`low`, `high`]: with probability 1 - `significance`, all of them hold that are ever taken.

    A value outside of the range makes the bounds infinite.
    """
    scaled = (np.asarray(list(values), np.float64) - low) / (high - low)
    if scaled.size and not (scaled.min() >= 0 and scaled.max() <= 1):
        return -inf, inf
    least, most = (_lower(side, significance / 2) for side in (scaled, 1 - scaled))
    return low + least * (high - low), high - most * (high - low)


def _lower(values: Floats, level: float) -> float:
    """Return the largest refuted mean of values in [0, 1]: capital falls as the mean rises."""
    bets = _bets(values, level)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        gains = np.log1p(np.minimum(bets, _CAP / middle) * (values - middle))
        # The highest capital so far: what was once refuted stays so.
        refuted = gains.size > 0 and gains.cumsum().max() >= log(1 / level)
        low, high = (middle, high) if refuted else (low, middle)
    return low


def _bets(values: Floats, level: float) -> Floats:
    """Return each value's λ without its cap, from the values before it."""
    bets = np.empty_like(values)
    total, squares, variance = 0.5, 0.25, 0.25
    for place, value in enumerate(values):
        number = place + 1
        bets[place] = sqrt(2 * log(1 / level) / (variance * number * log1p(number)))
        total += value
        squares += (value - total / (number + 1)) ** 2
        variance = squares / (number + 1)
    return bets
