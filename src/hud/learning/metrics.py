"""Metrics of several passes as one: every name carries its reduction.

`loss:sum` adds, `entropy:mean` averages over action tokens, `reward:mean` over runs, `gap:max` and `reward:min` take extremes.
Anything else keeps its last value.
"""

from __future__ import annotations

from collections.abc import Sequence

TOKENS = "action_tokens:sum"
"""Metric that weights means."""
RUNS = "runs:sum"
"""Metric that weights the mean reward."""


def merge(passes: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the metrics of several passes together. Means are weighed by action tokens, that of rewards by runs, where known."""
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for one in passes for name in one):
        weight_name = RUNS if name == "reward:mean" else TOKENS
        values = [(one[name], one.get(weight_name, 1.0)) for one in passes if name in one]
        numbers = [value for value, _ in values]
        reduction = name.rpartition(":")[2]
        if reduction == "sum":
            merged[name] = sum(numbers)
        elif reduction == "max":
            merged[name] = max(numbers)
        elif reduction == "min":
            merged[name] = min(numbers)
        elif reduction == "mean":
            weight = sum(weight for _, weight in values)
            merged[name] = (
                sum(value * weight for value, weight in values) / weight
                if weight
                else sum(numbers) / len(numbers)
            )
        else:
            merged[name] = numbers[-1]
    return merged
