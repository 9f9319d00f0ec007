"""Percentile of a reward among the rewards of people who did the same task.

Three functions of a reward s in [0, 1], each continuous, never falling, with values in [0, 1]:

    rank(s)    continuous mid-rank percentile among n people
    anchor(s)  standing between reference solvers, whose own standing is declared
    score(s)   anchor(s) while n < FEWEST_PEOPLE, then (n rank(s) + SHRINKAGE anchor(s)) / (n + SHRINKAGE)

All three are 0 up to the reward of doing nothing and 1 from full marks on, whatever people did (`ends`). Between the ends, the
mid-rank of a reward that c of n people have, and b fall short of, is (b + c / 2) / n. Between two people's rewards it is
interpolated, as are mid-distribution functions (Y. Ma, M. Genton and E. Parzen, "Asymptotic properties of sample quantiles of
discrete distributions", 2011). `score` is the posterior mean of the rank under a Dirichlet process whose base has the ranks
`anchor` and whose concentration is SHRINKAGE.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

FEWEST_PEOPLE = 3
"""People who must have done a task before their rewards count."""
SHRINKAGE = 3.0
"""Weight of the references, in people."""

Point = tuple[float, float]
"""A reward, and the standing there."""


def ends(references: Sequence[Point]) -> tuple[float, float]:
    """Return the rewards of doing nothing and of full marks, from reference solvers, each a reward and a standing.

    The first is the best reward of a solver with standing 0, the second the least of one with standing 1; without such
    solvers, 0 and 1.
    """
    floor = max((_clamped(value) for value, standing in references if standing <= 0), default=0.0)
    top = min((_clamped(value) for value, standing in references if standing >= 1), default=1.0)
    # Solvers that do not differ say nothing about the ends.
    return (floor, top) if floor < top else (0.0, 1.0)


def rank(reward: float, people: Sequence[float], references: Sequence[Point] = ()) -> float:
    """Return the continuous mid-rank percentile of `reward` among `people`, of whom there must be one at least.

    People at an end are counted, and move no end: 0 is the rank of doing nothing, 1 that of full marks.
    """
    floor, top = ends(references)
    below, points = 0.0, []
    for value, count in sorted(Counter(map(_clamped, people)).items()):
        if floor < value < top:
            points.append((value, (below + count / 2) / len(people)))
        below += count
    return _interpolated(_clamped(reward), [(floor, 0.0), *points, (top, 1.0)])


def anchor(reward: float, references: Sequence[Point]) -> float:
    """Return the standing of `reward` between reference solvers, each given by its reward and its standing.

    Solvers between the ends count where their reward lies between them; of several with one reward, their mean.
    """
    floor, top = ends(references)
    between: dict[float, list[float]] = {}
    for value, standing in references:
        if floor < _clamped(value) < top and 0 < standing < 1:
            between.setdefault(_clamped(value), []).append(standing)
    points, highest = [(floor, 0.0)], 0.0
    for value, standings in sorted(between.items()):
        highest = max(highest, sum(standings) / len(standings))
        points.append((value, highest))
    return _interpolated(_clamped(reward), [*points, (top, 1.0)])


def score(reward: float, people: Sequence[float], references: Sequence[Point]) -> float:
    """Return the score of a run on a task, from the rewards of people and of reference solvers there."""
    anchored = anchor(reward, references)
    if len(people) < FEWEST_PEOPLE:
        return anchored
    weight = len(people) / (len(people) + SHRINKAGE)
    return weight * rank(reward, people, references) + (1 - weight) * anchored


def _interpolated(reward: float, points: Sequence[Point]) -> float:
    """Interpolate linearly between points in the order of their rewards; constant beyond the first and the last."""
    place = bisect_right(points, reward, key=lambda point: point[0])
    if place in (0, len(points)):
        return points[min(place, len(points) - 1)][1]
    (left, low), (right, high) = points[place - 1], points[place]
    return low + (high - low) * (reward - left) / (right - left)


def _clamped(value: float) -> float:
    return min(max(value, 0.0), 1.0)
