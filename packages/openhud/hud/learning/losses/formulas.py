"""The losses. Formula, code and metric carry the same names.

For every sampled token t of every datum: lp_t the policy's logprob now, q_t its logprob under the policy that
sampled it, A_t its advantage, w_t its weight, r_t = exp(lp_t - q_t) with the log-ratio clamped to ±20. Losses are
**sums over tokens, not means**: so splitting a batch into several calls, reordering it or packing it differently
never changes the accumulated gradient.

    cross_entropy        -Σ w lp
    importance_sampling  -Σ r A
    ppo                  -Σ min(r A, clamp(r, lo, hi) A)                             arXiv 1707.06347
    cispo                -Σ stop(clamp(r, lo, hi)) lp A                              arXiv 2506.13585
    dro                  -Σ (lp A - ½ β (lp - q)²)                                   arXiv 2405.19107
    gspo                 -Σ min(s A, clamp(s, lo, hi) A),  s = exp(mean_t(lp - q))   arXiv 2507.18071
    ppo, gspo            with dual_clip c, where A < 0: no less than c A          arXiv 1912.09729
    dppo                 -Σ keep r A + c Σ (lp - q)²,  keep = not (A > 0 and p - p_q > high)
                                                          and not (A < 0 and p - p_q < -low)

Every function takes the action tokens of whole sequences, flat, without prompts and padding.
Names, keys and defaults are in `hud.learning.losses.config`, corrections in `hud.learning.losses.corrections`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hud.learning.losses.action_tokens import MAX_LOG_RATIO, ActionTokens, log_ratio
from hud.learning.losses.config import LossConfig
from hud.learning.losses.corrections import correction_weights


@dataclass(frozen=True)
class LossTerms:
    """A loss for each token, with metrics."""

    values: Tensor
    """(N,), to be summed."""
    sums: dict[str, Tensor]
    """Scalars without gradient that add over tokens."""


def cross_entropy(tokens: ActionTokens, _: LossConfig) -> LossTerms:
    """Supervised learning of the output tokens; a negative weight pushes a token away."""
    return LossTerms(-tokens.weights * tokens.logprobs, {})


def importance_sampling(tokens: ActionTokens, _: LossConfig) -> LossTerms:
    """Policy gradient with importance sampling, for the policy's change since sampling. No clip."""
    ratio = log_ratio(tokens).exp()
    return LossTerms(-ratio * tokens.advantages, {})


def ppo(tokens: ActionTokens, config: LossConfig) -> LossTerms:
    """PPO's clip: no gradient of a token whose ratio has left [lo, hi] in its advantage's direction."""
    ratio = log_ratio(tokens).exp()
    return _clipped(ratio, tokens.advantages, config)


def cispo(tokens: ActionTokens, config: LossConfig) -> LossTerms:
    """CISPO: clip the weight of a token's gradient, so that every token keeps a gradient."""
    ratio = log_ratio(tokens).exp().detach()
    low, high = config["clip_low_threshold"], config["clip_high_threshold"]
    clipped = (ratio < low) | (ratio > high)
    return LossTerms(
        -ratio.clamp(low, high) * tokens.logprobs * tokens.advantages,
        {"clip_fraction": clipped.sum()},
    )


def dro(tokens: ActionTokens, config: LossConfig) -> LossTerms:
    """Policy gradient on the logprob, with a quadratic penalty on the distance from the sampling policy."""
    # Not clamped: a clamp would remove the penalty's gradient for the largest distances.
    gap = tokens.logprobs - tokens.sampling_logprobs
    return LossTerms(-(tokens.logprobs * tokens.advantages - 0.5 * config["beta"] * gap**2), {})


def gspo(tokens: ActionTokens, config: LossConfig) -> LossTerms:
    """PPO with one ratio for a whole sequence: the geometric mean of its tokens' ratios."""
    ratio = tokens.mean_of(log_ratio(tokens)).exp()[tokens.sequence]
    return _clipped(ratio, tokens.advantages, config)


def dppo(tokens: ActionTokens, config: LossConfig) -> LossTerms:
    """Mask tokens whose probability (not ratio) has moved too far in their advantage's direction."""
    ratio = log_ratio(tokens).exp()
    moved = tokens.logprobs.detach().exp() - tokens.sampling_logprobs.exp()
    up = (tokens.advantages > 0) & (moved > config["mask_high"])
    down = (tokens.advantages < 0) & (moved < -config["mask_low"])
    keep = ~(up | down)
    square = (tokens.logprobs - tokens.sampling_logprobs) ** 2
    return LossTerms(
        -(keep * ratio * tokens.advantages) + config["square_coef"] * square,
        {"clip_fraction": (~keep).sum()},
    )


def _clipped(ratio: Tensor, advantages: Tensor, config: LossConfig) -> LossTerms:
    low, high = config["clip_low_threshold"], config["clip_high_threshold"]
    free, held = ratio * advantages, ratio.clamp(low, high) * advantages
    values, sums = torch.minimum(free, held), {"clip_fraction": (held < free).detach().sum()}
    if "dual_clip" in config:
        # A clip applies in the advantage's direction only; in the other, the gradient has the full ratio.
        least = config["dual_clip"] * advantages
        bounded = (advantages < 0) & (values < least)
        values = torch.where(bounded, least, values)
        sums["dual_clip_fraction"] = bounded.detach().sum()
    return LossTerms(-values, sums)


LOSSES: dict[str, Callable[[ActionTokens, LossConfig], LossTerms]] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
    "dro": dro,
    "gspo": gspo,
    "dppo": dppo,
}


def compute_loss(tokens: ActionTokens, config: LossConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss to minimize, a scalar, and sums of metrics (without gradient).

        Σ_t norm_t · (correction_t · loss_t + kl_coef · kl_t - entropy_coef · H_t)

    norm_t is the per-token part of a normalization (share/length for `sequence_mean`, 1/constant for `dr_grpo`); the optimizer
    step divides by counts over the whole batch. The shares of a run's sequences add up to 1: share/length is 1 over the
    run's sampled tokens.
    """
    if config["kl_advantage_coef"]:
        penalty = tokens.logprobs.detach() - _reference(tokens)
        advantages = tokens.advantages - config["kl_advantage_coef"] * penalty
        tokens = replace(tokens, advantages=advantages)
    terms = LOSSES[config.loss_fn](tokens, config)
    values, sums = terms.values, dict(terms.sums)
    if config.corrects:
        weights, corrected = correction_weights(tokens, config)
        values = values * weights
        sums.update(corrected)
    if tokens.reference_logprobs is not None:
        kl = tokens.reference_kl
        if kl is None:
            estimator = int(config["kl_estimator"]) or 3
            kl = kl_estimate(tokens.logprobs, tokens.reference_logprobs, estimator)
        sums["reference_kl"] = kl.detach().sum()
        if config["kl_coef"]:
            values = values + config["kl_coef"] * kl
    if tokens.entropy is not None:
        sums["policy_entropy"] = tokens.entropy.detach().sum()
        values = values - config["entropy_coef"] * tokens.entropy
    if config.normalization == "sequence_mean":
        lengths = tokens.sum_of(torch.ones_like(values))
        if tokens.shares is not None:
            lengths = lengths / tokens.shares
        values = values / lengths[tokens.sequence]
    elif config.normalization == "dr_grpo":
        values = values / config["dr_grpo_length"]
    loss = values.sum()
    return loss, {"loss": loss.detach(), **sums}


def kl_estimate(logprobs: Tensor, reference: Tensor, estimator: int) -> Tensor:
    """Return an estimate of KL(policy ‖ reference) at each token (Schulman, joschu.net/blog/kl-approx).

    With d = lp - lp_ref:  k1 = d,  k2 = ½ d²,  k3 = exp(-d) - 1 + d.
    """
    d = (logprobs - reference).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if estimator == 1:
        return d
    if estimator == 2:
        return 0.5 * d**2
    return torch.expm1(-d) + d


def sampler_gap(tokens: ActionTokens) -> dict[str, Tensor]:
    """Return the policy's change since sampling as sums of k1, k2 and k3 of KL(sampler ‖ policy).

    k1 = q - lp,  k2 = ½ (q - lp)²,  k3 = r - 1 - (lp - q)
    """
    gap = log_ratio(tokens).detach()
    return {
        "sampler_k1": -gap.sum(),
        "sampler_k2": 0.5 * (gap**2).sum(),
        "sampler_k3": (torch.expm1(gap) - gap).sum(),
        "entropy": -tokens.sampling_logprobs.sum(),
    }


def _reference(tokens: ActionTokens) -> Tensor:
    # The trainer computes it for every configuration that needs it.
    assert tokens.reference_logprobs is not None
    return tokens.reference_logprobs
