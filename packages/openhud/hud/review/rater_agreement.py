"""Agreement of raters: Cohen's kappa and Krippendorff's alpha."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

MOST_RATERS = 50
"""Raters whose pairs are compared, those with the most values: each two of thousands would take minutes."""
MODEL_RATER = "review:"
"""Beginning of the names of raters that are models."""


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


def main_raters(ratings: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the names of the `MOST_RATERS` raters with the most values, sorted."""
    by_count = sorted(ratings, key=lambda rater: (-len(ratings[rater]), rater))
    return sorted(by_count[:MOST_RATERS])


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
