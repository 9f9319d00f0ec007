"""Reduction of metrics over passes: every name has its reduction as suffix.

`loss:sum` adds, `entropy:mean` averages over action tokens, `reward:mean` over runs, `gap:max` and `reward:min` take extremes.
Anything else keeps its last value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

TOKENS = "action_tokens:sum"
"""Metric with the weights of means."""
RUNS = "runs:sum"
"""Metric with the weights of means over runs."""
_OVER_RUNS = frozenset({"reward:mean", "datums_per_run:mean"})

_REDUCTIONS: dict[str, Callable[[list[float]], float]] = {"sum": sum, "max": max, "min": min}


def merge(passes: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the combined metrics of several passes. Means are weighted by action tokens, rewards by runs, if known."""
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for metrics in passes for name in metrics):
        weight_name = RUNS if name in _OVER_RUNS else TOKENS
        values = [
            (metrics[name], metrics.get(weight_name, 1.0)) for metrics in passes if name in metrics
        ]
        numbers = [value for value, _ in values]
        reduction = name.rpartition(":")[2]
        if reduction in _REDUCTIONS:
            merged[name] = _REDUCTIONS[reduction](numbers)
        elif reduction != "mean":
            merged[name] = numbers[-1]
        elif weight := sum(weight for _, weight in values):
            merged[name] = sum(value * weight for value, weight in values) / weight
        else:
            merged[name] = sum(numbers) / len(numbers)
    return merged
