"""The curves of a training run as one PNG: reward, held-out score with its interval, loss, KL, entropy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hud.eval.results.held_out_scores import Score
from hud.train.monitoring.loss_metrics import held_out_losses, loss_per_token

_ROUNDING = {"kl": 1e-7, "gap": 2e-5}
"""Largest KL (k3) and logprob gap, in nats, that come of float32 alone at the weights that sampled."""
_BLUE, _ORANGE, _GREY = "#2a6fbb", "#d9772b", "#9aa5b1"


def draw_curves(
    history: Sequence[dict[str, Any]], scores: Sequence[Score], path: Path, *, title: str = ""
) -> Path | None:
    """Plot `{step, metrics}` and scores to `path`; None without data, or without matplotlib."""
    if not history and not scores:
        return None
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    # Not pyplot: it keeps figures in global state, and selects a backend that may need a display.
    figure = Figure(figsize=(9, 7), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 3, height_ratios=[1.7, 1])
    _rewards(figure.add_subplot(grid[0, :]), history, scores, title)
    panels: tuple[tuple[str, str, Callable[[Mapping[str, float]], float | None]], ...] = (
        ("loss", "loss per token", loss_per_token),
        ("kl", "KL to the sampler (k3)", lambda metrics: metrics.get("sampler_k3:mean")),
        ("entropy", "entropy per token", lambda metrics: metrics.get("entropy:mean")),
    )
    for place, (quantity, name, value) in enumerate(panels):
        axes = figure.add_subplot(grid[1, place])
        values = {
            row["step"] + 1: number
            for row in history
            if (number := value(row["metrics"])) is not None
        }
        if is_rounding(quantity, values.values()):
            values = dict.fromkeys(values, 0.0)
        _bare(axes)
        axes.set_title(name, fontsize=9, loc="left")
        axes.set_xlabel("step", fontsize=8)
        if values:
            axes.plot(list(values), list(values.values()), color=_BLUE, linewidth=1.2)
        measured = held_out_losses(history) if quantity == "loss" else {}
        if measured:
            axes.plot(
                list(measured), list(measured.values()), color=_ORANGE, marker="o", markersize=3
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def is_rounding(quantity: str, values: Iterable[float]) -> bool:
    """Return True for a curve that is zero up to rounding."""
    return max(map(abs, values), default=0.0) < _ROUNDING.get(quantity, 0.0)


def smoothed(values: Sequence[float], width: int = 5) -> list[float]:
    """Return the mean of each value and up to `width - 1` before it."""
    return [
        sum(values[max(0, place - width + 1) : place + 1]) / min(place + 1, width)
        for place in range(len(values))
    ]


def _rewards(
    axes: Any, history: Sequence[dict[str, Any]], scores: Sequence[Score], title: str
) -> None:
    _bare(axes)
    rewards = [
        (row["step"] + 1, row["metrics"]["rollout_reward:mean"])
        for row in history
        if "rollout_reward:mean" in row["metrics"]
    ]
    if rewards:
        steps, values = zip(*rewards, strict=True)
        axes.plot(steps, values, color=_GREY, linewidth=0.8, alpha=0.7)
        axes.plot(
            steps,
            smoothed(values),
            color=_BLUE,
            linewidth=1.8,
            label="training reward, mean of 5 steps",
        )
    if scores:
        # Rounding puts the mean of equal rewards outside its interval.
        low = [
            max(0.0, score.mean - (score.mean if score.low is None else score.low))
            for score in scores
        ]
        high = [
            max(0.0, (score.mean if score.high is None else score.high) - score.mean)
            for score in scores
        ]
        axes.errorbar(
            [score.step for score in scores],
            [score.mean for score in scores],
            yerr=[low, high],
            color=_ORANGE,
            marker="o",
            markersize=4,
            capsize=3,
            linewidth=1.8,
            label="held-out score, 95% interval",
        )
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel("mean reward", fontsize=9)
    if rewards or scores:
        axes.legend(frameon=False, fontsize=9, loc="lower right")


def _bare(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.tick_params(labelsize=8)
