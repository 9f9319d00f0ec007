"""The port of pass computers: a training pass over packed datums, forward and backward.

A pass computer belongs to one decoder, whose weights it reads anew for each pass. Several threads may call it at the same time
where gradients are returned instead of accumulated. Implementations: `training_pass.PlainPasses`, which uses a decoder as it is,
and those of kernel backends (`engine.kernels`). `tests/ports/test_pass_computer_port.py` is their conformance suite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hud.engine.learn.packed_pass import PackedPass
from hud.learning.losses.config import LossConfig


@dataclass(frozen=True)
class PassResult:
    """The result of one pass."""

    logprobs: Tensor
    """(N,) of the sampled tokens, fp32 (fp64 for weights of fp64), natural log, at the pass's temperatures."""
    sums: dict[str, float]
    """Metrics, summed over sampled tokens."""
    gradients: Sequence[Tensor | None] | None = None
    """Gradients of the trained parameters; None if they are in `grad` already."""
    expert_load: Tensor | None = None
    """(routers, experts): tokens that each expert computed; None without experts."""
    top_tokens: Tensor | None = None
    """(M, k) int64: likeliest tokens of each prediction, if they were requested."""
    top_logprobs: Tensor | None = None
    """(M, k + 1): their logprobs and, last, that of all other tokens together."""


class PassComputer(Protocol):
    """Computes training passes of one decoder."""

    def gradient(
        self,
        batch: PackedPass,
        loss: LossConfig,
        reference: Tensor | None = None,
        *,
        trained: Sequence[Tensor] | None = None,
    ) -> PassResult:
        """Compute a pass and the gradients of `trained`; None: they are added to each parameter's `grad`.

        `reference` (N,) are the logprobs of the policy that KL is taken to, for losses that need them; its likeliest tokens are in
        the batch (`reference_tokens`). A pass without datums takes part in the collectives of other ranks, and adds zeros.
        """

    def logprobs(self, batch: PackedPass, top: int = 0) -> PassResult:
        """Compute the logprobs of a pass alone, without gradient. `top`: number of likeliest tokens to return for each prediction."""
