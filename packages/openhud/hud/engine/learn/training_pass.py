"""The plain training pass: the logprobs of the sampled tokens, and the gradient of a loss of them.

Logits are computed at the positions that predict a sampled token and nowhere else, in chunks. Where they are many, each
chunk is computed again in the backward pass: the logits of a large batch never exist at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from hud.engine.decoder import Decoder
from hud.engine.kernels import backend_for
from hud.engine.learn.packed_pass import PackedPass
from hud.engine.learn.pass_computer import PassComputer, PassResult
from hud.engine.models.routing import routed
from hud.learning.losses.config import LossConfig
from hud.learning.losses.formulas import compute_loss, sampler_gap

LOGITS_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Most logits (tokens x vocabulary) computed at a time: 64 MiB in fp32, about a CPU's cache; on a GPU 1 GiB: each chunk reads
the whole vocabulary's weights and adds to their gradient, which costs more than it computes below some thousand tokens."""

KEPT_LOGITS = 1 << 28
"""Most logits of a pass kept for its gradient, 1 GiB in fp32; those of a larger pass are computed again."""


def pass_computer(decoder: Decoder) -> PassComputer:
    """Return what computes the training passes of a decoder: a kernel backend's, or the plain one."""
    backend = backend_for(decoder.device)
    computer: PassComputer | None = None if backend is None else backend.pass_computer(decoder)
    return computer or PlainPasses(decoder)


class PlainPasses(PassComputer):
    """Passes of a decoder as it is. Kernels derive from it and replace `hidden`."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def gradient(
        self,
        batch: PackedPass,
        loss: LossConfig,
        reference: Tensor | None = None,
        *,
        trained: Sequence[Tensor] | None = None,
    ) -> PassResult:
        with_gradient = None
        if loss.factor is not None:
            with_gradient = getattr(batch, loss.factor) != 0
        with routed(batch.experts) as routing:
            logprobs, entropy = self.token_logprobs(
                batch, entropy=loss.needs_entropy, with_gradient=with_gradient
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
        metrics = dict(zip(sums, values, strict=True))
        return PassResult(logprobs.detach(), metrics, gradients, routing.load())

    @torch.no_grad()
    def logprobs(self, batch: PackedPass) -> PassResult:
        with routed(batch.experts):
            return PassResult(self.token_logprobs(batch)[0], {})

    def hidden(self, batch: PackedPass, rows: Tensor) -> Tensor:
        """Return the last hidden states (N, H) of the positions `rows` (N,) of a pass."""
        if batch.pictures:
            return self.decoder.hidden_with_pictures(
                batch.input_ids, batch.cu_seqlens, batch.pictures, rows
            )
        return self.decoder.hidden_packed(
            batch.input_ids, batch.positions, batch.cu_seqlens, batch.prefixes, rows
        )

    def token_logprobs(
        self,
        batch: PackedPass,
        *,
        entropy: bool = False,
        with_gradient: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (N,) logprobs of the sampled tokens and, with `entropy`, entropies of their distributions.

        `with_gradient` (N,) bool: tokens whose logprobs the loss has a gradient of; the vocabulary projection of others is
        computed without. None: all.
        """
        logprobs, entropies = self._predicted(batch, entropy, _predictions(batch, with_gradient))
        if batch.prediction is None:
            return logprobs, entropies
        # The gradients of a prediction that several datums have are summed.
        if entropies is not None:
            entropies = entropies.index_select(0, batch.prediction)
        return logprobs.index_select(0, batch.prediction), entropies

    def _predicted(
        self, batch: PackedPass, entropy: bool, with_gradient: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return (M,) logprobs and entropies of a pass's predictions; `with_gradient` (M,): see `token_logprobs`."""
        if (
            with_gradient is None
            or entropy
            or int(with_gradient.sum()) in (0, len(with_gradient))  # 0: no tensor may be empty
        ):
            hidden = self.hidden(batch, batch.predicts)
            return self._in_chunks(hidden, batch, slice(None), entropy)
        moved, still = with_gradient.nonzero().squeeze(-1), (~with_gradient).nonzero().squeeze(-1)
        places = torch.cat((moved, still))
        hidden = self.hidden(batch, batch.predicts[places])
        of_moved, _ = self._in_chunks(hidden[: len(moved)], batch, moved)
        with torch.no_grad():
            of_still, _ = self._in_chunks(hidden[len(moved) :], batch, still)
        logprobs = torch.cat((of_moved, of_still))
        return logprobs.new_empty(len(places)).index_copy(0, places, logprobs), None

    def _in_chunks(
        self, hidden: Tensor, batch: PackedPass, which: Tensor | slice, entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return logprobs and entropies of the predictions `which` of a pass, from their states `hidden` (K, H)."""
        targets = batch.targets[which]
        temperatures = None if batch.temperatures is None else batch.temperatures[which]
        most = LOGITS_AT_ONCE.get(hidden.device.type, LOGITS_AT_ONCE["cpu"])
        rows = max(1, most // self.decoder.config.vocab_size)
        if len(targets) <= rows:
            return self._logprobs(hidden, targets, temperatures, entropy)
        compute = self._logprobs
        if len(targets) * self.decoder.config.vocab_size > KEPT_LOGITS:
            compute = partial(
                checkpoint, self._logprobs, use_reentrant=False, preserve_rng_state=False
            )
        parts = [
            compute(
                hidden[start : start + rows],
                targets[start : start + rows],
                None if temperatures is None else temperatures[start : start + rows],
                entropy,
            )
            for start in range(0, len(targets), rows)
        ]
        logprobs = torch.cat([part[0] for part in parts])
        entropies = [part[1] for part in parts if part[1] is not None]
        return logprobs, torch.cat(entropies) if entropy else None

    def _logprobs(
        self, hidden: Tensor, targets: Tensor, temperatures: Tensor | None, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        logits = self.decoder.logits(hidden)
        # fp64 stays: gradient checks run in it.
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if temperatures is not None:
            logits = logits / temperatures[:, None]
        entropies = None
        # Other decoders may keep their logits for the gradient.
        overwrite = self.decoder.config.ours and not entropy
        if entropy:
            everything = logits - logits.logsumexp(-1, keepdim=True)
            entropies = -(everything.exp() * everything).sum(-1)
        logprobs: Tensor = _TokenLogprobs.apply(logits, targets, overwrite)  # type: ignore[no-untyped-call]
        return logprobs, entropies


def _predictions(batch: PackedPass, actions: Tensor | None) -> Tensor | None:
    """Return (M,) bool: the predictions of some of a pass's sampled tokens, `actions` (N,) bool."""
    if actions is None or batch.prediction is None:
        return actions
    predictions = torch.zeros_like(batch.predicts, dtype=torch.bool)
    predictions[batch.prediction[actions]] = True
    return predictions


class _TokenLogprobs(torch.autograd.Function):
    """Logprobs (N,) of targets (N,) under logits (N, V): log-softmax whose sum keeps a vocabulary's tail.

    PyTorch's fused log-softmax adds fp32 terms one after the other on a CPU: over 151,936 tokens, frequent ones first, the
    sum is off by 3e-5. `Tensor.sum` adds in pairs, which leaves the rounding of the result, and takes less time.

    `overwrite`: logits are not used again, so their memory is; fresh memory of this size costs as much as what is computed in it.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, overwrite: bool) -> Tensor:
        highest = logits.amax(-1, keepdim=True)
        shifted = logits.sub_(highest) if overwrite else logits - highest
        target = shifted.gather(-1, targets[:, None])
        mass = shifted.exp_()
        total = mass.sum(-1, keepdim=True)
        ctx.save_for_backward(mass, total, targets)
        return (target - total.log()).squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        mass, total, targets = ctx.saved_tensors
        logits_gradient = mass.mul_(-gradient[:, None] / total)
        logits_gradient.scatter_add_(-1, targets[:, None], gradient[:, None])
        return logits_gradient, None, None
