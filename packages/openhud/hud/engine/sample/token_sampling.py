"""Token sampling: one token from the distribution of each request, and its logprob.

Logprobs are those of the distribution that was sampled: fp32, temperature applied. Random numbers belong to the request, so its
tokens do not depend on the rest of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hud.errors import InfrastructureFault
from hud.trace import SamplingParams

NOT_FINITE = "The model's logits are not finite: its weights hold NaN or infinite values, or overflow in their dtype."
_BLOCK = 64
"""Random numbers generated at a time."""
_NONE = np.empty(0)
_WIDTH = 128
"""Probabilities that are summed in one block."""


class Uniforms:
    """A request's own stream of uniform random numbers in [0, 1)."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._generator: np.random.Generator | None = None
        self._block = _NONE
        self._used = 0
        """Consumed numbers of the block."""

    def next(self) -> float:
        """Return the next number."""
        number = float(self.coming(1)[0])
        self._used += 1
        return number

    def coming(self, count: int) -> NDArray[np.float64]:
        """Return the next `count` numbers (count,), at most `_BLOCK`, without consuming them."""
        if len(self._block) - self._used < count:
            self._fill()
        return self._block[self._used : self._used + count]

    def skip(self, count: int) -> None:
        """Consume numbers that `coming` returned."""
        self._used += count

    def _fill(self) -> None:
        # Not before: a turn that another process samples needs none here.
        if self._generator is None:
            self._generator = np.random.Generator(np.random.Philox(self._seed))
        self._block = np.concatenate((self._block[self._used :], self._generator.random(_BLOCK)))
        self._used = 0


def sample_tokens(
    logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Sample one token for each row of logits (B, V); returns the ids and their natural-log probabilities.

    A row with temperature 0 takes its likeliest token, with the logprob of temperature 1. Raises `InfrastructureFault` for
    logits that are not finite.
    """
    cut = _adjusted(logits, params)
    highest = cut.amax(dim=-1, keepdim=True)
    mass = torch.sub(cut, highest).exp_()
    where = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
    ids, total = _inverse_transform(mass, where)
    temperatures = [param.effective_temperature for param in params]
    if 0.0 in temperatures:
        greedy = torch.tensor(temperatures, device=logits.device) == 0
        ids = torch.where(greedy[:, None], cut.argmax(dim=-1, keepdim=True), ids)
    chosen = cut.gather(-1, ids) - highest - total.log().float()
    # One copy, as each waits for the GPU; float64 holds ids exactly.
    both = torch.cat((ids.double(), chosen.double()), dim=-1).T.tolist()
    if any(map(math.isnan, both[1])):
        raise InfrastructureFault(NOT_FINITE)
    return [int(token) for token in both[0]], both[1]


def _inverse_transform(mass: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index (B, 1) at which the running sum of `mass` (B, V) passes the fraction `where` (B, 1), and the sum.

    In float64, as in float32 a vocabulary's tail is lost in the rounding of the sum; and in two levels, so that float64 is
    for the sums of blocks and for one block alone. An index without mass is never returned; of a row with NaN it is any one.
    """
    size = mass.shape[-1]
    blocks = F.pad(mass, (0, -size % _WIDTH)).view(len(mass), -1, _WIDTH)
    sums = blocks.sum(dim=-1, dtype=torch.float64)
    running = sums.cumsum(dim=-1)
    total = running[:, -1:]
    wanted = _below(where * total, total)
    # Clamped: an index of NaN is past the end, and on a GPU ends every request of the process.
    block = torch.searchsorted(running, wanted, right=True).clamp_(max=blocks.shape[1] - 1)
    rest = wanted - (running.gather(-1, block) - sums.gather(-1, block))
    row = torch.arange(len(mass), device=mass.device)[:, None]
    inside = blocks[row, block].squeeze(1).cumsum(dim=-1, dtype=torch.float64)
    place = torch.searchsorted(inside, _below(rest, inside[:, -1:]), right=True)
    return (block * _WIDTH + place).clamp_(max=size - 1), total


def _below(values: Tensor, limit: Tensor) -> Tensor:
    """Return the values, clamped below the limit: at it the next index would have no mass."""
    return torch.minimum(values, torch.nextafter(limit, torch.zeros_like(limit)))


def likeliest_tokens(
    logits: Tensor, params: Sequence[SamplingParams], count: int
) -> list[list[tuple[int, float]]]:
    """Return, for each row of logits (B, V), its `count` likeliest tokens and their logprobs, likeliest first."""
    logits = _adjusted(logits, params)
    # Not log_softmax, whose sum over a large vocabulary is less exact than that of `sample_tokens`.
    logits = logits - logits.logsumexp(dim=-1, keepdim=True)
    logprobs, ids = logits.topk(min(count, logits.shape[-1]), dim=-1)
    return [
        list(zip(row, values, strict=True))
        for row, values in zip(ids.tolist(), logprobs.tolist(), strict=True)
    ]


def _adjusted(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Return fp32 logits after temperature, with tokens outside top-k and top-p at minus infinity."""
    logits = logits.float()
    temperatures = [param.effective_temperature or 1.0 for param in params]
    if any(temperature != 1.0 for temperature in temperatures):
        logits = logits / torch.tensor(temperatures, device=logits.device)[:, None]
    return _cut(logits, params) if any(param.truncates for param in params) else logits


def _cut(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Return the logits with tokens outside top-k and top-p at minus infinity."""
    ordered, order = logits.sort(dim=-1, descending=True)
    size = logits.shape[-1]
    most = torch.tensor([param.effective_top_k or size for param in params], device=logits.device)
    # Without a cut, the running sum may round to 1 before the last token.
    shares = [
        param.effective_top_p if param.effective_top_p < 1.0 else float("inf") for param in params
    ]
    mass = torch.tensor(shares, device=logits.device)
    before = torch.softmax(ordered, dim=-1).cumsum(dim=-1) - torch.softmax(ordered, dim=-1)
    rank = torch.arange(size, device=logits.device)
    # The likeliest token always stays.
    out = ((rank >= most[:, None]) | (before >= mass[:, None])) & (rank > 0)
    return logits.masked_fill(out.gather(-1, order.argsort(dim=-1)), float("-inf"))
