"""Percentile of a reward among the rewards of people who did the same task.

Three functions of a reward s in [0, 1], each continuous, never falling, with values in [0, 1]:

    rank(s)    continuous mid-rank percentile among n people
    anchor(s)  standing between reference solvers, whose own standing is declared
    score(s)   anchor(s) while n < FEWEST_PEOPLE, then (n rank(s) + SHRINKAGE anchor(s)) / (n + SHRINKAGE)

The mid-rank of a reward that c of n people have, and b fall short of, is (b + c / 2) / n: who ties with everyone stands
at 0.5. Between two people's rewards the rank is interpolated, as are mid-distribution functions (Y. Ma, M. Genton and
E. Parzen, "Asymptotic properties of sample quantiles of discrete distributions", 2011). `score` is the posterior mean of
the rank under a Dirichlet process whose base has the ranks `anchor` and whose concentration is SHRINKAGE.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence

FEWEST_PEOPLE = 3
"""People who must have done a task before their rewards count."""
SHRINKAGE = 3.0
"""Weight of the references, in people."""

Point = tuple[float, float]
"""A reward, and the standing there."""


def rank(reward: float, people: Sequence[float]) -> float:
    """Return the continuous mid-rank percentile of `reward` among `people`, of whom there must be one at least."""
    below, points = 0.0, []
    for value, count in sorted(Counter(map(_clamped, people)).items()):
        points.append((value, (below + count / 2) / len(people)))
        below += count
    return _interpolated(_clamped(reward), points)


def anchor(reward: float, references: Iterable[Point]) -> float:
    """Return the standing of `reward` between reference solvers, each given by its reward and its standing.

    The ends stand firm: 0 up to the best reward of a solver with standing 0, 1 from the least reward of one with
    standing 1 on, and where there is none, at the rewards 0 and 1. Solvers between the ends count where their reward lies
    between them; of several with one reward, their mean.
    """
    known = [(_clamped(value), standing) for value, standing in references]
    floor = max((value for value, standing in known if standing <= 0), default=0.0)
    top = min((value for value, standing in known if standing >= 1), default=1.0)
    if top <= floor:  # The solvers do not differ, so that only the reward itself is left.
        floor, top = 0.0, 1.0
    between: dict[float, list[float]] = {}
    for value, standing in known:
        if floor < value < top and 0 < standing < 1:
            between.setdefault(value, []).append(standing)
    points, highest = [(floor, 0.0)], 0.0
    for value, standings in sorted(between.items()):
        highest = max(highest, sum(standings) / len(standings))
        points.append((value, highest))
    reward = _clamped(reward)
    if reward <= floor:
        return 0.0
    return 1.0 if reward >= top else _interpolated(reward, [*points, (top, 1.0)])


def score(reward: float, people: Sequence[float], references: Iterable[Point]) -> float:
    """Return the score of a run on a task, from the rewards of people and of reference solvers there."""
    anchored = anchor(reward, references)
    if len(people) < FEWEST_PEOPLE:
        return anchored
    weight = len(people) / (len(people) + SHRINKAGE)
    return weight * rank(reward, people) + (1 - weight) * anchored


def _interpolated(reward: float, points: list[Point]) -> float:
    """Interpolate linearly between points; (0, 0) and (1, 1) are added where the points do not reach so far."""
    if points[0][0] > 0:
        points = [(0.0, 0.0), *points]
    if points[-1][0] < 1:
        points = [*points, (1.0, 1.0)]
    place = min(bisect_right(points, reward, key=lambda point: point[0]), len(points) - 1)
    if place == 0:  # Everyone has one and the same reward, and this one is it.
        return points[0][1]
    (left, low), (right, high) = points[place - 1], points[place]
    return low + (high - low) * (reward - left) / (right - left)


def _clamped(value: float) -> float:
    return min(max(value, 0.0), 1.0)
