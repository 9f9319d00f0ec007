"""Losses among the metrics of steps: of training, of pairs of preferences, and of held-out runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PAIR_LOSS = "preference_loss:mean"
"""Metric of a step over pairs: their mean loss, in nats; log 2 where nothing is preferred."""
HELD_OUT_LOSS = "held_out_loss:mean"
"""Metric: loss per token of runs that are not trained on, after the step; of a reward model, per pair."""
HELD_OUT_ACCURACY = "held_out_accuracy:mean"
"""Metric: share of held-out pairs whose better run has the higher reward, after the step."""
INITIAL_LOSS = "initial_held_out_loss:mean"
"""Metric of the first step: that loss before training."""


def loss_per_token(metrics: Mapping[str, float]) -> float | None:
    """Return the loss per action token, or that of a pair of preferences; None without any."""
    if PAIR_LOSS in metrics:
        return metrics[PAIR_LOSS]
    tokens = metrics.get("action_tokens:sum")
    return metrics["loss:sum"] / tokens if tokens and "loss:sum" in metrics else None


def held_out_losses(history: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Return the held-out losses that were measured after steps, by the number of steps done."""
    return {
        int(row["step"]) + 1: row["metrics"][HELD_OUT_LOSS]
        for row in history
        if HELD_OUT_LOSS in row["metrics"]
    }
