"""One training pass: the logprobs of the sampled tokens, and the gradient of a loss of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from hud.engine.learn.logprobs import pass_logprobs
from hud.engine.learn.packed_pass import PackedPass
from hud.errors import InfrastructureFault
from hud.learning.losses.config import LossConfig
from hud.learning.losses.formulas import compute_loss, sampler_gap

if TYPE_CHECKING:
    from hud.engine.pretrained import AnyDecoder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PassResult:
    """The result of one pass."""

    logprobs: Tensor
    """(N,) of the sampled tokens."""
    sums: dict[str, float]
    """Metrics, summed over sampled tokens."""
    gradients: Sequence[Tensor | None] | None = None
    """Gradients of the trained parameters; None where they are in `grad` already."""


Compute = Callable[[PackedPass, LossConfig | None], PassResult]
"""Computes a pass; without a loss its logprobs alone."""


class PassWorker(Protocol):
    """A worker process with the present weights."""

    def compute(
        self, batch: PackedPass, loss: LossConfig | None, *, checkpointed: bool
    ) -> PassResult:
        """Compute a pass; without a loss its logprobs alone.

        Raises `InfrastructureFault` where it fails there, or the process has ended.
        """
        ...


def gradient_pass(
    decoder: AnyDecoder,
    batch: PackedPass,
    loss: LossConfig,
    reference: Tensor | None = None,
    *,
    trained: Sequence[Tensor] | None = None,
) -> PassResult:
    """Compute a pass and the gradients of `trained`; None: they are added to each parameter's `grad`.

    `reference` (N,) are the logprobs of the policy that KL is taken to, for losses that need them.
    """
    logprobs, entropy = pass_logprobs(decoder, batch, entropy=loss.needs_entropy)
    if not batch.datums:
        # Only for the collectives of the other ranks.
        (logprobs.sum() * 0.0).backward()  # type: ignore[no-untyped-call]
        return PassResult(logprobs.detach(), {})
    tokens = batch.tokens(logprobs, entropy, reference)
    total, sums = compute_loss(tokens, loss)
    gradients = None
    if trained is not None:
        gradients = torch.autograd.grad(total, trained, allow_unused=True)
    else:
        total.backward()  # type: ignore[no-untyped-call]
    if not loss.supervised:
        sums |= sampler_gap(tokens)
    # One copy from the device for all of them.
    values = torch.stack([one.to(total.dtype) for one in sums.values()]).tolist()
    return PassResult(logprobs.detach(), dict(zip(sums, values, strict=True)), gradients)


@torch.no_grad()
def logprobs_pass(decoder: AnyDecoder, batch: PackedPass) -> PassResult:
    """Return the logprobs of a pass alone."""
    return PassResult(pass_logprobs(decoder, batch)[0], {})


def on_first_free(sides: Sequence[PassWorker], here: Compute, *, checkpointed: bool) -> Compute:
    """Return a function that computes a pass in the first free worker of `sides`, and by `here` where that fails."""
    free: SimpleQueue[PassWorker] = SimpleQueue()
    for side in sides:
        free.put(side)

    def compute(batch: PackedPass, loss: LossConfig | None) -> PassResult:
        side = free.get()
        try:
            return side.compute(batch, loss, checkpointed=checkpointed)
        except InfrastructureFault as fault:
            log.warning("%s It is computed in this process.", fault)
            return here(batch, loss)
        finally:
            free.put(side)

    return compute
