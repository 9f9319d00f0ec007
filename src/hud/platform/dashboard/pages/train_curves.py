"""Curves of a training run as the charts want them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hud.train.plots import loss_per_token, smoothed

Metrics = Mapping[str, float]
Value = Callable[[Metrics], float | None]

CAPTIONS = {
    "reward": "Reward: training, and held-out with its 95% interval",
    "kl": "KL between sampler and trainer (k3)",
    "entropy": "Entropy per token",
    "loss": "Loss per token",
    "gap": "Logprob gap between sampler and trainer",
    "lag": "Policy lag, steps",
    "phases": "Seconds of a step, by phase",
    "groups": "Groups of a step",
}
MOST_POINTS = 2_000


def curve(
    name: str, history: Sequence[Mapping[str, Any]], scores: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return one chart's data: steps that were done, and a value of each series for each of them."""
    every = max(1, -(-len(history) // MOST_POINTS))
    rows = [row for place, row in enumerate(history) if place % every == 0 or row is history[-1]]
    if name == "reward":
        return _reward(rows, scores)
    series = [
        {"name": label, "values": [_number(value(row["metrics"])) for row in rows]}
        for label, value in _SERIES[name]
    ]
    return {"x_label": "step", "x": [row["step"] + 1 for row in rows], "series": series}


def _reward(
    rows: Sequence[Mapping[str, Any]], scores: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    trained = {
        row["step"] + 1: row["metrics"]["rollout_reward:mean"]
        for row in rows
        if "rollout_reward:mean" in row["metrics"]
    }
    means = dict(zip(trained, smoothed(list(trained.values())), strict=True))
    held_out = {score["step"]: score for score in scores}
    steps = sorted(trained.keys() | held_out.keys())

    def of_scores(key: str) -> list[float | None]:
        return [_number(held_out[step][key]) if step in held_out else None for step in steps]

    series: list[dict[str, Any]] = [
        {"name": "training, mean of 5", "values": [_number(means.get(step)) for step in steps]},
        {
            "name": "held-out",
            "values": of_scores("mean"),
            "low": of_scores("low"),
            "high": of_scores("high"),
            "points": True,
        },
        {
            "name": "training",
            "values": [_number(trained.get(step)) for step in steps],
            "thin": True,
        },
    ]
    if not held_out:
        del series[1]
    return {"x_label": "step", "x": steps, "series": series}


def _of(key: str) -> Value:
    return lambda metrics: metrics.get(key)


def _left(metrics: Metrics) -> float | None:
    """Groups that were learned from."""
    drawn = metrics.get("groups_drawn:sum")
    return None if drawn is None else drawn - metrics.get("groups_without_spread:sum", 0.0)


_SERIES: dict[str, tuple[tuple[str, Value], ...]] = {
    "kl": (("KL", _of("sampler_k3:mean")),),
    "entropy": (("entropy", _of("entropy:mean")),),
    "loss": (("loss", lambda metrics: loss_per_token(dict(metrics))),),
    "gap": (("mean", _of("sampler_gap:mean")), ("99th percentile", _of("sampler_gap_p99:max"))),
    "lag": (("mean", _of("policy_lag:mean")), ("largest", _of("policy_lag:max"))),
    "phases": (("rollouts", _of("seconds_rollouts:sum")), ("update", _of("seconds_update:sum"))),
    "groups": (("drawn", _of("groups_drawn:sum")), ("with spread", _left)),
}


def _number(value: float | None) -> float | None:
    return None if value is None or value != value or abs(value) == float("inf") else value
