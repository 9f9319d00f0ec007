"""Agreement of raters on one label, and of raters with graders."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

import sqlalchemy as sa

from hud.platform.labels.labels import Labels
from hud.platform.store import tables
from hud.platform.store.queries import in_parts

MOST_LABELS = 100_000
GRADER = "reward"
"""Name of the grader among the raters: the runs' rewards."""


def agreement(labels: Labels, name: str) -> dict[str, Any]:
    """Return the agreement on a label of runs: `alpha` of all raters, and each pair with `kappa`, `alpha` and `runs`.

    Pairs include each rater with the runs' rewards.
    """
    rows, _ = labels.page("run", name=name, limit=MOST_LABELS)
    by_rater: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row["value"] is not None:
            by_rater[row["rater"]][row["subject_id"]] = row["value"]
    people = dict(by_rater)
    rated = {run for ratings in people.values() for run in ratings}
    rewards = _rewards(labels, sorted(rated))
    pairs = [
        pair_agreement(first, second, people) for first, second in combinations(sorted(people), 2)
    ]
    graded = {**people, GRADER: rewards}
    pairs += [pair_agreement(rater, GRADER, graded) for rater in sorted(people)]
    return {
        "name": name,
        "raters": {rater: len(ratings) for rater, ratings in people.items()},
        "runs": len(rated),
        "alpha": alpha(list(people.values())),
        "pairs": [pair for pair in pairs if pair["runs"]],
    }


def kappa(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Cohen's kappa (1960) of two raters' values of the same subjects; None where chance alone agrees fully."""
    count = len(first)
    if not count:
        return None
    observed = sum(left == right for left, right in zip(first, second, strict=True)) / count
    left, right = Counter(first), Counter(second)
    expected = sum(left[value] * right[value] for value in left) / count**2
    return None if expected == 1 else (observed - expected) / (1 - expected)


def alpha(ratings: Sequence[Mapping[str, float]]) -> float | None:
    """Return Krippendorff's alpha for interval data; None where no subject has two ratings, or all values are equal.

    1 - D_o / D_e, with the squared difference as distance (Krippendorff, Content Analysis, chapter 12). Each mapping has one
    rater's values by subject.
    """
    by_subject: defaultdict[str, list[float]] = defaultdict(list)
    for values in ratings:
        for subject, value in values.items():
            by_subject[subject].append(value)
    units = [values for values in by_subject.values() if len(values) > 1]
    pooled = [value for values in units for value in values]
    if len(pooled) < 2:
        return None
    observed = sum(_squares(values) / (len(values) - 1) for values in units) / len(pooled)
    expected = _squares(pooled) / (len(pooled) * (len(pooled) - 1))
    return None if expected == 0 else 1 - observed / expected


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squared differences over all ordered pairs: 2 n times that from the mean."""
    mean = fmean(values)
    return 2 * len(values) * sum((value - mean) ** 2 for value in values)


def pair_agreement(
    first: str, second: str, ratings: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Return the agreement of two raters on the subjects that both rated. `ratings`: values by subject, by rater."""
    shared = sorted(ratings[first].keys() & ratings[second].keys())
    values = [ratings[first][subject] for subject in shared]
    others = [ratings[second][subject] for subject in shared]
    both = [dict(zip(shared, column, strict=True)) for column in (values, others)]
    return {
        "raters": [first, second],
        "runs": len(shared),
        "equal": sum(a == b for a, b in zip(values, others, strict=True)),
        "kappa": kappa(values, others),
        "alpha": alpha(both),
    }


def _rewards(labels: Labels, traces: Sequence[str]) -> dict[str, float]:
    runs = tables.runs
    rewards: dict[str, float] = {}
    for some in in_parts(traces):
        query = sa.select(runs.c.trace_id, runs.c.reward).where(
            runs.c.trace_id.in_(some), runs.c.reward.is_not(None)
        )
        rewards |= {row.trace_id: row.reward for row in labels.store.rows(query)}
    return rewards
