"""Low-rank terms of projections that share an input, whose rows may come in chunks (`chunked_layers`).

    y_i += s_i (x A_iᵀ) B_iᵀ        A: (r, in), B: (out, r)

The first products of all projections are one: x [A_1; A_2; ...]ᵀ. So are their gradients. Base weights are frozen, and get none.
Products are in the dtype of the base weights, gradients in that of the adapters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hud.engine.lora import LoraLinear


def weight_of(projection: nn.Module) -> Tensor:
    """Return the weight (out, in) of a projection, without its low-rank term."""
    layer = projection.base if isinstance(projection, LoraLinear) else projection
    assert isinstance(layer, nn.Linear)
    return layer.weight


class LowRank:
    """The low-rank terms of projections of one input (N, in), and their gradients.

    A layer without an adapter, or with a disabled one, has rank 0 here.
    """

    def __init__(self, projections: Sequence[nn.Module], count: int) -> None:
        """`count`: N, the rows of the input."""
        self.tensors: list[Tensor] = []
        """A and B of each adapter, in turn: inputs of the function that computes the terms, which returns `gradients`."""
        self._ranks, self._scales = [], []
        firsts, self._seconds = [], list[Tensor]()
        for projection in projections:
            weight, rank, scale = weight_of(projection), 0, 0.0
            first, second = weight[:0], weight[:, :0]
            if isinstance(projection, LoraLinear) and projection.enabled:
                first, second, scale = projection.lora_A, projection.lora_B, projection.scale
                rank = len(first)
                self.tensors += [first, second]
            self._ranks.append(rank)
            self._scales.append(scale)
            firsts.append(first.detach().to(weight.dtype))
            self._seconds.append(second.detach().to(weight.dtype))
        self._first = torch.cat(firsts)
        self._low = self._first.new_empty(count if self.tensors else 0, len(self._first))
        """(N, R): x Aᵀ of all adapters, kept for the gradient."""
        self._to_first: Tensor | None = None
        self._to_seconds: list[Tensor] = []

    def add(self, rows: slice, x: Tensor, outs: Sequence[Tensor]) -> None:
        """Add the terms of the rows x (n, in) to the projections' outputs (n, out_i)."""
        if not self.tensors:
            return
        low = torch.mm(x, self._first.T, out=self._low[rows]).split_with_sizes(self._ranks, dim=1)
        for columns, second, scale, out in zip(low, self._seconds, self._scales, outs, strict=True):
            if scale:
                out.addmm_(columns, second.T, alpha=scale)

    def pull(self, rows: slice, gs: Sequence[Tensor], to_x: Tensor | None) -> Tensor | None:
        """Add the terms' gradients of some rows to `to_x` (n, in) and to those of B; return that of x Aᵀ (n, R).

        `gs` (n, out_i) are gradients of the projections' outputs.
        """
        if not self.tensors:
            return None
        if self._to_first is None:
            self._to_first = torch.zeros_like(self._first)
            self._to_seconds = [torch.zeros_like(second) for second in self._seconds]
        low = self._low[rows]
        to_low = torch.empty_like(low)
        for columns, to_columns, second, to_second, scale, g in zip(
            low.split_with_sizes(self._ranks, dim=1),
            to_low.split_with_sizes(self._ranks, dim=1),
            self._seconds,
            self._to_seconds,
            self._scales,
            gs,
            strict=True,
        ):
            if scale:
                torch.mm(g, second, out=to_columns).mul_(scale)
                to_second.addmm_(g.T, columns, alpha=scale)
        if to_x is not None:
            to_x.addmm_(to_low, self._first)
        return to_low

    def collect(self, to_low: Tensor | None, x: Tensor) -> None:
        """Add to the gradients of A those of some rows x (n, in), for which `pull` returned `to_low`."""
        if to_low is not None and self._to_first is not None:
            self._to_first.addmm_(to_low.T, x)

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of `tensors`."""
        if self._to_first is None:
            return []
        firsts = self._to_first.split_with_sizes(self._ranks)
        adapters = zip(firsts, self._to_seconds, self._scales, strict=True)
        gradients = [
            gradient for first, second, scale in adapters if scale for gradient in (first, second)
        ]
        return [
            gradient.to(tensor.dtype)
            for gradient, tensor in zip(gradients, self.tensors, strict=True)
        ]
