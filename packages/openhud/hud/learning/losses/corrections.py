"""Corrections for a sampler that differs from the trained policy, by precision or policy lag.

A correction is a weight for each token, without gradient, that multiplies any loss; several are multiplied. r = exp(lp -
q), with the log-ratio clamped to ±20.

    tis            min(r, C), token by token, or min(Π r, C) for a sequence (truncated importance sampling)
    icepop         1 where r in [low, high], else 0 (named so by the authors of Ring-1T)
    sequence_mask  1 where the sequence's geometric mean of r in [low, high]
    outlier_mask   1 where every token of the sequence has r in [low, high]
"""

from __future__ import annotations

import torch
from torch import Tensor

from hud.learning.losses.action_tokens import MAX_LOG_RATIO, ActionTokens, log_ratio
from hud.learning.losses.config import LossConfig


def correction_weights(
    tokens: ActionTokens, config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return (N,) weights without gradient, and the number of tokens changed by each correction."""
    gap = log_ratio(tokens).detach()
    ratio = gap.exp()
    weights = torch.ones_like(ratio)
    touched: dict[str, Tensor] = {}
    if "tis_token_cap" in config:
        cap = config["tis_token_cap"]
        weights = weights * ratio.clamp(max=cap)
        touched["tis_token_capped"] = (ratio > cap).sum()
    if "tis_sequence_cap" in config:
        cap = config["tis_sequence_cap"]
        product = tokens.sum_of(gap).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()[tokens.sequence]
        weights = weights * product.clamp(max=cap)
        touched["tis_sequence_capped"] = (product > cap).sum()
    if "icepop_low" in config:
        weights, touched["icepop_dropped"] = _keep(weights, _inside(ratio, config, "icepop"))
    if "sequence_mask_low" in config:
        mean = tokens.mean_of(gap).exp()
        mask = _inside(mean, config, "sequence_mask")[tokens.sequence]
        weights, touched["sequence_mask_dropped"] = _keep(weights, mask)
    if "outlier_mask_low" in config:
        outside = ~_inside(ratio, config, "outlier_mask")
        mask = (tokens.sum_of(outside.to(ratio.dtype)) == 0)[tokens.sequence]
        weights, touched["outlier_mask_dropped"] = _keep(weights, mask)
    return weights, touched


def _inside(values: Tensor, config: LossConfig, name: str) -> Tensor:
    return (values >= config[f"{name}_low"]) & (values <= config[f"{name}_high"])


def _keep(weights: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return weights * mask, (~mask).sum()
