"""The line of an evaluation: training reward, held-out scores, KL, entropy and length since the evaluation before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from hud.eval.results.held_out_scores import Score
from hud.train.monitoring.progress import score_key

_OF_STEPS = {
    "grpo_reward_mean": ("rollout_reward:mean",),
    "kl_divergence": ("reference_kl:mean", "sampler_k3:mean"),
    "entropy": ("entropy:mean",),
    "completion_tokens": ("rollout_tokens:mean",),
}
"""Averaged metrics of a step, by the key of the line; of several, the first measured one."""


def evaluation_lines(
    history: Sequence[Mapping[str, Any]], scores: Sequence[Score]
) -> list[dict[str, float | None]]:
    """Return a line for each evaluation: `epoch` (steps done), means over the steps since the one before, and scores.

    `kl_divergence` is to the reference if the loss measures it, else between sampler and trainer (k3), in nats per token.
    Means are None without a step.
    """
    lines = []
    since = 0
    for score in sorted(scores, key=lambda evaluated: evaluated.step):
        rows = [row["metrics"] for row in history if since <= row["step"] < score.step]
        since = score.step
        means = {key: _mean(rows, names) for key, names in _OF_STEPS.items()}
        reward = {"grpo_reward_mean": means.pop("grpo_reward_mean")}
        named = {score_key(set_score.name): set_score.mean for set_score in score.sets}
        lines.append(
            {"epoch": score.step, **reward, **(named or {score_key(""): score.mean}), **means}
        )
    return lines


def _mean(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> float | None:
    for name in names:
        if values := [row[name] for row in rows if name in row]:
            return fmean(values)
    return None
