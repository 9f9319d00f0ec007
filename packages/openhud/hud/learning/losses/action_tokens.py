"""Action tokens: the sampled tokens of several sequences, laid end to end, as the input of a loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class ActionTokens:
    """The sampled tokens of some whole sequences, laid end to end: each tensor is (N,), floats unless said."""

    logprobs: Tensor
    """lp: logprobs under the current policy; the only tensor with a gradient (and `entropy` and `reference_kl`, if given)."""
    sampling_logprobs: Tensor
    """q: logprobs under the policy that sampled."""
    advantages: Tensor
    weights: Tensor
    sequence: Tensor
    """int64: index of each token's sequence, from 0."""
    sequences: int
    """Number of sequences."""
    reference_logprobs: Tensor | None = None
    """Under the reference policy, without gradient."""
    reference_kl: Tensor | None = None
    """KL to the reference policy over the whole distribution at each token (`distribution_kl`), in nats."""
    entropy: Tensor | None = None
    """Of the policy's whole distribution at each token, in nats."""
    shares: Tensor | None = None
    """(sequences,): share of each sequence in its run (`Datum.share`); None: all are 1."""

    def sum_of(self, values: Tensor) -> Tensor:
        """Return (sequences,): values summed over each sequence."""
        return values.new_zeros(self.sequences).index_add(0, self.sequence, values)

    def mean_of(self, values: Tensor) -> Tensor:
        """Return (sequences,): values averaged over the sampled tokens of each sequence."""
        return self.sum_of(values) / self.sum_of(torch.ones_like(values)).clamp(min=1)


def log_ratio(tokens: ActionTokens) -> Tensor:
    """Return lp - q, clamped to ±20."""
    return (tokens.logprobs - tokens.sampling_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
