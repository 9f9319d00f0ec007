"""A transformer layer's forward pass and gradient written out, but for attention, for training small models on one core.

Rows go through all of a part of the layer in chunks that stay in the core's cache, by torch's matrix products and the
kernels between them; little is kept for the gradient, and the rest computed again from it. A norm is x / √(|x|² + n ε) here,
times its scale and √n. Frozen matrices get no gradient, and `LowRank` terms of adapters are computed with each chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hud_kernels.cpu.kernels import Floats, gate, place
from hud_kernels.cpu.low_rank import LowRank
from hud_kernels.cpu.training_kernels import gate_gradient, heads_gradient, scaled, scaled_gradient

ROWS = 600
"""Most rows of a chunk. With fewer, products are slower: each reads and writes a whole weight or its gradient."""

LARGEST = 1 << 20
"""Numbers in the largest matrix of a layer for which this pays: each chunk reads and writes all of its gradient."""


@dataclass(frozen=True)
class Heads:
    """Shape of a layer's heads."""

    heads: int
    kv_heads: int
    size: int
    small: float
    """D * eps: the epsilon for a sum of squares; -1 without norms of queries and keys."""

    def split(self, projected: Tensor, dim: int = 1) -> tuple[Tensor, ...]:
        """Return the parts of queries, keys and values of a dimension of (H + 2 K) D."""
        sizes = [self.heads * self.size, *[self.kv_heads * self.size] * 2]
        return projected.split_with_sizes(sizes, dim)


class Projection(torch.autograd.Function):
    """Queries (N, H, D), keys and values (N, K, D) of x (N, W), normalized and times `norm` (W,), by matrices and a bias.

    `scale` (H + K, D) is that of the norms of queries and keys; `cos` and `sin` (N, D / 2) are of positions.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        norm: Tensor,
        small: float,
        bias: Tensor | None,
        scale: Tensor,
        cos: Floats,
        sin: Floats,
        shape: Heads,
        terms: LowRank,
        *matrices: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # The matrices of `terms` follow the projections' own.
        x, count, matrix = x.detach().contiguous(), len(x), torch.cat(matrices[:3])
        projected = x.new_empty(count, len(matrix))
        queries = x.new_empty(count, shape.heads, shape.size)
        keys, values = (x.new_empty(count, shape.kv_heads, shape.size) for _ in range(2))
        normed = _room(x, x.shape[1])
        for rows in _chunks(count):
            here = normed[: rows.stop - rows.start]
            _call(scaled, x[rows], norm, small, here)
            if bias is None:
                torch.mm(here, matrix.T, out=projected[rows])
            else:
                torch.addmm(bias, here, matrix.T, out=projected[rows])
            terms.add(rows, here, shape.split(projected[rows]))
            heads = (tensor[rows] for tensor in (queries, keys, values))
            _call(place, projected[rows], scale, shape.small, cos[rows], sin[rows], *heads)
        ctx.save_for_backward(x, norm, projected, matrix, scale)
        ctx.rest = small, cos, sin, shape, terms
        return queries, keys, values

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, norm, projected, matrix, scale = ctx.saved_tensors
        small, cos, sin, shape, terms = ctx.rest
        trained = ctx.needs_input_grad[9:12]
        to_matrix = torch.empty_like(matrix) if any(trained) else None
        to_bias = torch.zeros_like(matrix[:, 0]) if ctx.needs_input_grad[3] else None
        dx = torch.zeros_like(x) if any(ctx.needs_input_grad[:2]) else None
        to_norm, to_scale = torch.zeros_like(norm), torch.zeros_like(scale)
        queries, keys, values = (tensor.contiguous() for tensor in (queries, keys, values))
        normed, to_normed, to_projected = (
            _room(x, width) for width in (x.shape[1], x.shape[1], len(matrix))
        )
        for rows in _chunks(len(x)):
            size = rows.stop - rows.start
            g, here = to_projected[:size], normed[:size]
            heads = (tensor[rows] for tensor in (queries, keys, values))
            inputs = projected[rows], scale, shape.small, cos[rows], sin[rows], *heads
            _call(heads_gradient, *inputs, g, to_scale)
            if to_matrix is not None or terms.tensors:
                _call(scaled, x[rows], norm, small, here)
            if to_matrix is not None:
                _sum(to_matrix, g.T, here, rows)
            if to_bias is not None:
                to_bias += g.sum(0)
            if dx is not None:
                torch.mm(g, matrix, out=to_normed[:size])
            to_low = terms.pull(rows, shape.split(g), None if dx is None else to_normed[:size])
            terms.collect(to_low, here)
            if dx is not None:
                _call(scaled_gradient, to_normed[:size], x[rows], norm, small, dx[rows], to_norm)
        to_matrices: tuple[Tensor | None, ...] = (None,) * len(trained)
        if to_matrix is not None:
            to_matrices = shape.split(to_matrix, dim=0)
        to_heads = dx, to_norm, None, to_bias, to_scale
        return *to_heads, None, None, None, None, *to_matrices, *terms.gradients


class FeedForward(torch.autograd.Function):
    """y (N, W) = z + (silu(n · gatesᵀ) * (n · upsᵀ)) · downᵀ, where z = x (N, W) + attended (N, A) · outputᵀ.

    n (N, W) is z, normalized and times `norm` (W,).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        attended: Tensor,
        norm: Tensor,
        small: float,
        terms: tuple[LowRank, LowRank, LowRank],
        output: Tensor,
        gates: Tensor,
        ups: Tensor,
        down: Tensor,
        *_: Tensor,
    ) -> Tensor:
        of_output, of_gates_ups, of_down = terms
        x, attended = x.detach(), attended.detach().contiguous()
        between, y, wide = torch.empty_like(x), torch.empty_like(x), len(gates)
        gates_ups = x.new_empty(len(x), 2 * wide)
        normed, gated = _room(x, x.shape[1]), _room(x, wide)
        for rows in _chunks(len(x)):
            size = rows.stop - rows.start
            torch.addmm(x[rows], attended[rows], output.T, out=between[rows])
            of_output.add(rows, attended[rows], [between[rows]])
            _call(scaled, between[rows], norm, small, normed[:size])
            torch.mm(normed[:size], gates.T, out=gates_ups[rows, :wide])
            torch.mm(normed[:size], ups.T, out=gates_ups[rows, wide:])
            of_gates_ups.add(rows, normed[:size], gates_ups[rows].chunk(2, dim=1))
            _call(gate, gates_ups[rows], gated[:size])
            torch.addmm(between[rows], gated[:size], down.T, out=y[rows])
            of_down.add(rows, gated[:size], [y[rows]])
        ctx.save_for_backward(between, attended, norm, gates_ups, output, gates, ups, down)
        ctx.small, ctx.terms = small, terms
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        between, attended, norm, gates_ups, output, gates, ups, down = ctx.saved_tensors
        of_output, of_gates_ups, of_down = ctx.terms
        to_output, to_gates, to_ups, to_down = (
            torch.empty_like(like) if wanted else None
            for like, wanted in zip(
                (output, gates, ups, down), ctx.needs_input_grad[5:9], strict=True
            )
        )
        g, wide = g.contiguous(), len(gates)
        dx, to_attended, to_norm = g.clone(), torch.empty_like(attended), torch.zeros_like(norm)
        normed, to_normed, gated, to_gated, to_gates_ups = (
            _room(g, width) for width in (g.shape[1], g.shape[1], wide, wide, 2 * wide)
        )
        for rows in _chunks(len(g)):
            size = rows.stop - rows.start
            torch.mm(g[rows], down, out=to_gated[:size])
            to_low = of_down.pull(rows, [g[rows]], to_gated[:size])
            _call(
                gate_gradient, gates_ups[rows], to_gated[:size], gated[:size], to_gates_ups[:size]
            )
            of_down.collect(to_low, gated[:size])
            back_gates, back_ups = to_gates_ups[:size].chunk(2, dim=1)
            if to_down is not None:
                _sum(to_down, g[rows].T, gated[:size], rows)
            if to_gates is not None or to_ups is not None or of_gates_ups.tensors:
                _call(scaled, between[rows], norm, ctx.small, normed[:size])
            if to_gates is not None:
                _sum(to_gates, back_gates.T, normed[:size], rows)
            if to_ups is not None:
                _sum(to_ups, back_ups.T, normed[:size], rows)
            torch.mm(back_gates, gates, out=to_normed[:size])
            torch.addmm(to_normed[:size], back_ups, ups, out=to_normed[:size])
            to_low = of_gates_ups.pull(rows, (back_gates, back_ups), to_normed[:size])
            of_gates_ups.collect(to_low, normed[:size])
            inputs = to_normed[:size], between[rows], norm, ctx.small
            _call(scaled_gradient, *inputs, dx[rows], to_norm)
            torch.mm(dx[rows], output, out=to_attended[rows])
            to_low = of_output.pull(rows, [dx[rows]], to_attended[rows])
            of_output.collect(to_low, attended[rows])
            if to_output is not None:
                _sum(to_output, dx[rows].T, attended[rows], rows)
        to_matrices = to_output, to_gates, to_ups, to_down
        to_terms = (gradient for group in ctx.terms for gradient in group.gradients)
        return dx, to_attended, to_norm, None, None, *to_matrices, *to_terms


def _call(kernel: Callable[..., None], *arguments: Any) -> None:
    """Call a compiled kernel with the memory of tensors."""
    kernel(
        *(
            argument.detach().numpy() if isinstance(argument, Tensor) else argument
            for argument in arguments
        )
    )


def _sum(total: Tensor, a: Tensor, b: Tensor, rows: slice) -> None:
    """Add the product of a chunk's matrices to what those before it gave."""
    torch.addmm(total, a, b, beta=1 if rows.start else 0, out=total)


def _chunks(count: int) -> Iterator[slice]:
    """Yield slices of `count` rows, of like size."""
    chunks = max(1, -(-count // ROWS))
    for chunk in range(chunks):
        yield slice(count * chunk // chunks, count * (chunk + 1) // chunks)


def _room(like: Tensor, width: int) -> Tensor:
    """Return an uninitialized buffer for a chunk's rows."""
    return like.new_empty(min(ROWS, len(like)), width)
