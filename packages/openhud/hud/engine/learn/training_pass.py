"""One training pass: the logprobs of the sampled tokens, and the gradient of a loss of them.

Logits are computed at the positions that predict a sampled token and nowhere else, and where they are many, in
chunks that are computed again in the backward pass: the logits of a whole batch never exist at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hud.engine.learn.packed_pass import PackedPass
from hud.errors import InfrastructureFault
from hud.learning.losses.config import LossConfig
from hud.learning.losses.formulas import compute_loss, sampler_gap

if TYPE_CHECKING:
    from hud.engine.cpu.worker_handle import WorkerProcess
    from hud.engine.pretrained import AnyDecoder

log = logging.getLogger(__name__)

LOGITS_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Most logits (tokens x vocabulary) held at a time: 64 MiB in fp32, about a CPU's cache; on a GPU 1 GiB: each chunk reads
the whole vocabulary's weights and adds to their gradient, which costs more than it computes below some thousand tokens."""


@dataclass(frozen=True)
class PassResult:
    """The result of one pass."""

    logprobs: Tensor
    """(N,) of the sampled tokens."""
    sums: dict[str, float]
    """Metrics, summed over sampled tokens."""
    gradients: Sequence[Tensor | None] | None = None
    """Gradients of the trained parameters; None if they are in `grad` already."""


Compute = Callable[[PackedPass, LossConfig | None], PassResult]
"""Computes a pass; without a loss its logprobs alone."""


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
    with_gradient = None
    if loss.factor is not None:
        with_gradient = getattr(batch, loss.factor) != 0
    logprobs, entropy = pass_logprobs(
        decoder, batch, entropy=loss.needs_entropy, with_gradient=with_gradient
    )
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
    values = torch.stack([metric.to(total.dtype) for metric in sums.values()]).tolist()
    return PassResult(logprobs.detach(), dict(zip(sums, values, strict=True)), gradients)


@torch.no_grad()
def logprobs_pass(decoder: AnyDecoder, batch: PackedPass) -> PassResult:
    """Return the logprobs of a pass alone."""
    return PassResult(pass_logprobs(decoder, batch)[0], {})


def on_first_free(sides: Sequence[WorkerProcess], here: Compute, *, checkpointed: bool) -> Compute:
    """Return a function that computes a pass in the first free worker of `sides`, and by `here` if that fails."""
    free: SimpleQueue[WorkerProcess] = SimpleQueue()
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


def pass_logprobs(
    decoder: AnyDecoder,
    batch: PackedPass,
    *,
    entropy: bool = False,
    with_gradient: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return (N,) fp32 logprobs of the sampled tokens and, where asked for, entropies of their distributions.

    `with_gradient` (N,) bool: tokens whose logprobs the loss has a gradient of; the vocabulary projection of others is
    computed once for equal ones, and without gradient. None: all.
    """
    if (
        with_gradient is None
        or entropy
        or int(with_gradient.sum()) in (0, len(with_gradient))  # 0: no tensor may be empty
    ):
        hidden = _hidden(decoder, batch, batch.predicts)
        return _in_chunks(decoder, hidden, batch, slice(None), entropy)
    moved, still = with_gradient.nonzero().squeeze(-1), (~with_gradient).nonzero().squeeze(-1)
    first, place = _distinct(decoder, batch, still)
    hidden = _hidden(decoder, batch, batch.predicts[torch.cat((moved, first))])
    of_moved, _ = _in_chunks(decoder, hidden[: len(moved)], batch, moved)
    with torch.no_grad():
        of_first, _ = _in_chunks(decoder, hidden[len(moved) :], batch, first)
    logprobs = torch.cat((of_moved, of_first[place]))
    places = torch.cat((moved, still))
    return logprobs.new_empty(len(places)).index_copy(0, places, logprobs), None


def _distinct(decoder: AnyDecoder, batch: PackedPass, which: Tensor) -> tuple[Tensor, Tensor]:
    """Return one of each distinct token of `which` (M,), and (M,) the place of each token's in it."""
    if batch.temperatures is not None:
        return which, torch.arange(len(which), device=which.device)
    # Datums of a family that count their common prompt have its tokens in common.
    keys = batch.predicts[which] * decoder.config.vocab_size + batch.targets[which]
    distinct, place = torch.unique(keys, return_inverse=True)
    return which.new_zeros(len(distinct)).scatter_(0, place, which), place


def _hidden(decoder: AnyDecoder, batch: PackedPass, rows: Tensor) -> Tensor:
    hidden: Tensor = decoder.hidden_packed(
        batch.input_ids, batch.positions, batch.cu_seqlens, batch.prefixes, rows
    )
    return hidden


def _in_chunks(
    decoder: AnyDecoder,
    hidden: Tensor,
    batch: PackedPass,
    which: Tensor | slice,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return logprobs and entropies of the tokens `which` of a pass, which the states `hidden` (N, H) predict."""
    targets = batch.targets[which]
    temperatures = None if batch.temperatures is None else batch.temperatures[which]
    most = LOGITS_AT_ONCE.get(hidden.device.type, LOGITS_AT_ONCE["cpu"])
    rows = max(1, most // decoder.config.vocab_size)
    if len(targets) <= rows:
        return _logprobs(decoder, hidden, targets, temperatures, entropy)
    parts = [
        checkpoint(
            _logprobs,
            decoder,
            hidden[start : start + rows],
            targets[start : start + rows],
            None if temperatures is None else temperatures[start : start + rows],
            entropy,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for start in range(0, len(targets), rows)
    ]
    logprobs = torch.cat([part[0] for part in parts])
    return logprobs, torch.cat([part[1] for part in parts]) if entropy else None


def _logprobs(
    decoder: AnyDecoder,
    hidden: Tensor,
    targets: Tensor,
    temperatures: Tensor | None,
    entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    logits = decoder.logits(hidden)
    # fp64 stays: gradient checks run in it.
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if temperatures is not None:
        logits = logits / temperatures[:, None]
    logprobs: Tensor = _TokenLogprobs.apply(logits, targets)  # type: ignore[no-untyped-call]
    if not entropy:
        return logprobs, None
    everything = logits - logits.logsumexp(-1, keepdim=True)
    return logprobs, -(everything.exp() * everything).sum(-1)


class _TokenLogprobs(torch.autograd.Function):
    """Logprobs (N,) of targets (N,) under logits (N, V): log-softmax whose sum keeps a vocabulary's tail.

    PyTorch's fused log-softmax adds fp32 terms one after the other on a CPU: over 151,936 tokens, frequent ones first, the
    sum is off by 3e-5. `Tensor.sum` adds in pairs, which leaves the rounding of the result, and takes less time.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        highest = logits.amax(-1, keepdim=True)
        mass = (logits - highest).exp_()
        total = mass.sum(-1, keepdim=True)
        ctx.save_for_backward(mass, total, targets)
        return (logits.gather(-1, targets[:, None]) - highest - total.log()).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        mass, total, targets = ctx.saved_tensors
        logits_gradient = mass * (-gradient[:, None] / total)
        logits_gradient.scatter_add_(-1, targets[:, None], gradient[:, None])
        return logits_gradient, None
