"""The plain training pass: the logprobs of the sampled tokens, and the gradient of a loss of them.

Logits are computed at the positions that predict a sampled token and nowhere else, in chunks. Where they are many, each
chunk is computed again in the backward pass: the logits of a large batch never exist at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

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
from hud.learning.losses.distribution_kl import distribution_kl, joined_logprobs
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


class TokenScores(NamedTuple):
    """Values of some predictions or sampled tokens, (N,) where no shape is named; None: not computed."""

    logprobs: Tensor
    entropy: Tensor | None = None
    reference_kl: Tensor | None = None
    top_tokens: Tensor | None = None
    """(N, k)"""
    top_logprobs: Tensor | None = None
    """(N, k + 1); the last is that of all other tokens together."""


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
            scores = self.token_scores(
                batch,
                entropy=loss.needs_entropy,
                reference_kl=loss.reference_top > 0,
                with_gradient=with_gradient,
            )
        logprobs = scores.logprobs
        if not batch.datums:
            # Only for the collectives of the other ranks.
            (logprobs.sum() * 0.0).backward()  # type: ignore[no-untyped-call]
            return PassResult(logprobs.detach(), {})
        tokens = batch.tokens(logprobs, scores.entropy, reference, scores.reference_kl)
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
    def logprobs(self, batch: PackedPass, top: int = 0) -> PassResult:
        with routed(batch.experts):
            hidden = self.hidden(batch, batch.predicts)
        scores = self._in_chunks(hidden, batch, slice(None), top=top)
        return PassResult(
            _of_tokens(scores.logprobs, batch),
            {},
            top_tokens=scores.top_tokens,
            top_logprobs=scores.top_logprobs,
        )

    def hidden(self, batch: PackedPass, rows: Tensor) -> Tensor:
        """Return the last hidden states (N, H) of the positions `rows` (N,) of a pass."""
        if batch.pictures:
            return self.decoder.hidden_with_pictures(
                batch.input_ids, batch.cu_seqlens, batch.pictures, rows
            )
        return self.decoder.hidden_packed(
            batch.input_ids, batch.positions, batch.cu_seqlens, batch.prefixes, rows
        )

    def token_scores(
        self,
        batch: PackedPass,
        *,
        entropy: bool = False,
        reference_kl: bool = False,
        with_gradient: Tensor | None = None,
    ) -> TokenScores:
        """Return the logprobs of the sampled tokens; with `entropy` and `reference_kl`, those of their distributions.

        `with_gradient` (N,) bool: tokens whose logprobs the loss has a gradient of; the vocabulary projection of others is
        computed without. None: all.
        """
        with_gradient = _predictions(batch, with_gradient)
        if (
            with_gradient is None
            or entropy
            or reference_kl
            or int(with_gradient.sum()) in (0, len(with_gradient))  # 0: no tensor may be empty
        ):
            hidden = self.hidden(batch, batch.predicts)
            scores = self._in_chunks(
                hidden, batch, slice(None), entropy=entropy, reference_kl=reference_kl
            )
        else:
            scores = self._in_two_parts(batch, with_gradient)
        # The gradients of a prediction that several datums have are summed.
        logprobs, *others = (
            None if column is None else _of_tokens(column, batch) for column in scores
        )
        assert logprobs is not None
        return TokenScores(logprobs, *others)

    def _in_two_parts(self, batch: PackedPass, with_gradient: Tensor) -> TokenScores:
        """Return the logprobs of a pass's predictions, those that `with_gradient` (M,) excludes without a graph."""
        moved, still = with_gradient.nonzero().squeeze(-1), (~with_gradient).nonzero().squeeze(-1)
        places = torch.cat((moved, still))
        hidden = self.hidden(batch, batch.predicts[places])
        of_moved = self._in_chunks(hidden[: len(moved)], batch, moved).logprobs
        with torch.no_grad():
            of_still = self._in_chunks(hidden[len(moved) :], batch, still).logprobs
        logprobs = torch.cat((of_moved, of_still))
        return TokenScores(logprobs.new_empty(len(places)).index_copy(0, places, logprobs))

    def _in_chunks(
        self,
        hidden: Tensor,
        batch: PackedPass,
        which: Tensor | slice,
        *,
        entropy: bool = False,
        reference_kl: bool = False,
        top: int = 0,
    ) -> TokenScores:
        """Return the scores of the predictions `which` of a pass, from their states `hidden` (K, H)."""
        reference = (batch.reference_tokens, batch.reference_top) if reference_kl else (None, None)
        targets = batch.targets[which]
        columns = [
            None if column is None else column[which] for column in (batch.temperatures, *reference)
        ]
        most = LOGITS_AT_ONCE.get(hidden.device.type, LOGITS_AT_ONCE["cpu"])
        rows = max(1, most // self.decoder.config.vocab_size)
        compute = partial(self._scores, entropy=entropy, top=top)
        if len(hidden) <= rows:
            return compute(hidden, targets, *columns)
        if len(hidden) * self.decoder.config.vocab_size > KEPT_LOGITS:
            compute = partial(checkpoint, compute, use_reentrant=False, preserve_rng_state=False)
        parts = []
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            own = [None if column is None else column[part] for column in columns]
            parts.append(compute(hidden[part], targets[part], *own))
        logprobs, *others = zip(*parts, strict=True)
        return TokenScores(
            torch.cat(logprobs),
            *(None if column[0] is None else torch.cat(column) for column in others),
        )

    def _scores(
        self,
        hidden: Tensor,
        targets: Tensor,
        temperatures: Tensor | None,
        reference_tokens: Tensor | None,
        reference_top: Tensor | None,
        *,
        entropy: bool,
        top: int,
    ) -> TokenScores:
        logits = self.decoder.logits(hidden)
        # fp64 stays: gradient checks run in it.
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if temperatures is not None:
            logits = logits / temperatures[:, None]
        entropies = kl = top_tokens = top_logprobs = None
        if entropy:
            everything = logits - logits.logsumexp(-1, keepdim=True)
            entropies = -(everything.exp() * everything).sum(-1)
        if reference_tokens is not None and reference_top is not None:
            kl = distribution_kl(logits, reference_tokens, reference_top)
        if top:
            top_tokens = logits.topk(min(top, logits.shape[-1])).indices
            top_logprobs = joined_logprobs(logits, top_tokens)
        # Other decoders may keep their logits for the gradient.
        overwrite = self.decoder.config.ours and not entropy and kl is None
        logprobs: Tensor = _TokenLogprobs.apply(logits, targets, overwrite)  # type: ignore[no-untyped-call]
        return TokenScores(logprobs, entropies, kl, top_tokens, top_logprobs)


def _of_tokens(column: Tensor, batch: PackedPass) -> Tensor:
    """Return (N, ...): the values of the sampled tokens, from those of a pass's predictions (M, ...)."""
    return column if batch.prediction is None else column.index_select(0, batch.prediction)


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
