"""Curves of a training run as data for charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hud.eval.results.held_out_scores import Score, SetScore
from hud.train.monitoring.loss_metrics import HELD_OUT_LOSS, loss_per_token
from hud.train.monitoring.plots import is_rounding, smoothed

Metrics = Mapping[str, float]
Value = Callable[[Metrics], float | None]

CAPTIONS = {
    "reward": "Reward: training, and held-out with its 95% interval",
    "length": "Completion length, tokens",
    "gradient": "Gradient norm",
    "learning_rate": "Learning rate",
    "clip": "Clip fraction of tokens",
    "reference": "KL to the reference",
    "entropy": "Entropy per token",
    "loss": "Loss per token",
    "kl": "KL between sampler and trainer (k3)",
    "gap": "Logprob gap between sampler and trainer",
    "lag": "Policy lag, steps",
    "phases": "Seconds of a step, by phase",
    "groups": "Groups of a step",
}
_HELD_OUT = "held-out loss"
MOST_POINTS = 2_000
MOST_OVERLAID = 4
"""Maximum number of overlaid runs in one chart."""


def charts(
    history: Sequence[Mapping[str, Any]], scores: Sequence[Score] = ()
) -> tuple[list[str], list[dict[str, str]]]:
    """Return the names of the charts to draw, and the uninformative ones: `{name, caption, why}`.
    A chart is uninformative if it has no values, a constant value, or only rounding errors. Metrics that were never
    measured are in neither, and so is the reward of a supervised run without held-out scores.
    """
    supervised = any("epoch" in row["metrics"] for row in history)
    drawn, quiet = [] if supervised and not scores else ["reward"], []
    for name, caption in CAPTIONS.items():
        if name == "reward":
            continue
        columns = [
            [figure for row in history if (figure := _number(value(row["metrics"]))) is not None]
            for _, value in _SERIES[name]
        ]
        columns = [column for column in columns if column]
        why = _nothing_said(name, columns, len(history))
        if why is not None:
            quiet.append({"name": name, "caption": caption, "why": why})
        elif columns:
            drawn.append(name)
    return drawn, quiet


def _nothing_said(name: str, columns: list[list[float]], steps: int) -> str | None:
    if not columns or steps < 2:
        return None
    values = [value for column in columns for value in column]
    if is_rounding(name, values):
        return f"at most {max(map(abs, values)):.1g}, which is rounding"
    if all(len(set(column)) == 1 for column in columns):
        return (
            f"{' and '.join(dict.fromkeys(f'{column[0]:.4g}' for column in columns))} at every step"
        )
    return None


def curve(
    name: str, history: Sequence[Mapping[str, Any]], scores: Sequence[Score]
) -> dict[str, Any]:
    """Return one chart's data: the finished steps, and a value of each series for each step."""
    every = max(1, -(-len(history) // MOST_POINTS))
    rows = [row for place, row in enumerate(history) if place % every == 0 or row is history[-1]]
    if name == "reward":
        return _reward(rows, scores)
    series: list[dict[str, Any]] = []
    for label, value in _SERIES[name]:
        line = {"name": label, "values": [_number(value(row["metrics"])) for row in rows]}
        # Held-out losses are measured after some of the steps.
        series.append({**line, "points": True} if label == _HELD_OUT else line)
    measured = [line for line in series if any(value is not None for value in line["values"])]
    return {
        "x_label": "step",
        "x": [row["step"] + 1 for row in rows],
        "series": measured or series[:1],
    }


def overlaid(own: dict[str, Any], others: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a chart with the first series and the held-out scores of other runs, by their names."""
    steps = sorted({step for chart in (own, *others.values()) for step in chart["x"]})
    shown = [_at(steps, own["x"], series) for series in own["series"]]
    for called, other in others.items():
        for place, series in enumerate(other["series"]):
            if place == 0 or series.get("points"):
                renamed = {**series, "name": f"{called}: {series['name']}"}
                shown.append(_at(steps, other["x"], renamed))
    return {**own, "x": steps, "series": shown}


def _at(
    steps: Sequence[int], own_steps: Sequence[int], series: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a series with a value, or None, for each of `steps`."""
    moved = dict(series)
    for key in ("values", "low", "high"):
        if key in series:
            by_step = dict(zip(own_steps, series[key], strict=True))
            moved[key] = [by_step.get(step) for step in steps]
    return moved


def _reward(rows: Sequence[Mapping[str, Any]], scores: Sequence[Score]) -> dict[str, Any]:
    trained = {
        row["step"] + 1: row["metrics"]["rollout_reward:mean"]
        for row in rows
        if "rollout_reward:mean" in row["metrics"]
    }
    means = dict(zip(trained, smoothed(list(trained.values())), strict=True))
    held_out: dict[str, dict[int, Score | SetScore]] = {}
    for score in scores:
        # A single set equals the total.
        for part in score.sets if len(score.sets) > 1 else (score,):
            name = f"held-out {part.name}" if isinstance(part, SetScore) else "held-out"
            held_out.setdefault(name, {})[score.step] = part
    steps = sorted(trained.keys() | {score.step for score in scores})
    first = {"name": "training, mean of 5", "values": [_number(means.get(step)) for step in steps]}
    thin = {
        "name": "training",
        "values": [_number(trained.get(step)) for step in steps],
        "thin": True,
    }
    sets = [_points(name, steps, by_step) for name, by_step in held_out.items()]
    return {"x_label": "step", "x": steps, "series": [first, *sets, thin]}


def _points(
    name: str, steps: Sequence[int], by_step: Mapping[int, Score | SetScore]
) -> dict[str, Any]:
    def values(key: str) -> list[float | None]:
        return [_number(getattr(by_step[step], key)) if step in by_step else None for step in steps]

    return {
        "name": name,
        "values": values("mean"),
        "low": values("low"),
        "high": values("high"),
        "points": True,
    }


def _of(key: str) -> Value:
    return lambda metrics: metrics.get(key)


def _left(metrics: Metrics) -> float | None:
    """Number of groups in the gradient."""
    drawn = metrics.get("groups_drawn:sum")
    return None if drawn is None else drawn - metrics.get("groups_without_spread:sum", 0.0)


def _ratio(above: str, below: str) -> Value:
    def value(metrics: Metrics) -> float | None:
        return metrics[above] / metrics[below] if above in metrics and metrics.get(below) else None

    return value


_SERIES: dict[str, tuple[tuple[str, Value], ...]] = {
    "length": (
        ("a rollout", _ratio("action_tokens:sum", "runs:sum")),
        ("a turn", _ratio("action_tokens:sum", "samples:sum")),
    ),
    "gradient": (("norm, before clipping", _of("grad_norm:mean")),),
    "learning_rate": (("learning rate", _of("learning_rate")),),
    "clip": (
        ("clip fraction", _of("clip_fraction:mean")),
        ("dual clip fraction", _of("dual_clip_fraction:mean")),
    ),
    "reference": (("KL", _of("reference_kl:mean")),),
    "kl": (("KL", _of("sampler_k3:mean")),),
    "entropy": (("entropy", _of("entropy:mean")),),
    "loss": (("loss", loss_per_token), (_HELD_OUT, _of(HELD_OUT_LOSS))),
    "gap": (("mean", _of("sampler_gap:mean")), ("99th percentile", _of("sampler_gap_p99:max"))),
    "lag": (("mean", _of("policy_lag:mean")), ("largest", _of("policy_lag:max"))),
    "phases": (("rollouts", _of("seconds_rollouts:sum")), ("update", _of("seconds_update:sum"))),
    "groups": (("sampled", _of("groups_drawn:sum")), ("with signal", _left)),
}


def _number(value: float | None) -> float | None:
    return None if value is None or value != value or abs(value) == float("inf") else value
