"""A transformer layer's forward pass and gradient written out, but for attention, for training small models on one core.

Rows go through all of a part of the layer in chunks that stay in the core's cache, by torch's matrix products and the
kernels between them; little is kept for the gradient, and the rest computed again from it. Scales of norms are part of the
matrices behind them, x / √(|x|² + n ε) being left of a root mean square norm over n numbers, and autograd itself takes
their gradients apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hud.engine.kernels import Floats, HeadKernels, gate, head_kernels, normalize
from hud.engine.training_kernels import gate_gradient, heads_gradient, normalize_gradient

ROWS = 600
"""Most rows of a chunk. With fewer, products are slower: each reads and writes a whole weight or its gradient."""

LARGEST = 1 << 20
"""Numbers in the largest matrix of a layer for which this pays: each chunk reads and writes all of its gradient."""


@dataclass(frozen=True)
class Heads:
    """What is to be known of a layer's heads."""

    heads: int
    kv_heads: int
    size: int
    normalized: bool
    small: float
    """What is added to the square of a head's length, where it is normalized."""

    @property
    def kernels(self) -> HeadKernels:
        """What is compiled for them."""
        return head_kernels(self.size, self.heads // self.kv_heads, self.normalized)


class Projected(torch.autograd.Function):
    """Queries (N, H, D), keys and values (N, K, D) of x (N, W), normalized by matrix ((H + 2 K) D, W), bias and scale.

    `scale` (H + K, D) is that of the norms of queries and keys; `cos` and `sin` (N, D / 2) are of positions.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        small: float,
        matrix: Tensor,
        bias: Tensor | None,
        scale: Tensor,
        cos: Floats,
        sin: Floats,
        shape: Heads,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, count = x.detach().contiguous(), len(x)
        projected = x.new_empty(count, len(matrix))
        queries = x.new_empty(count, shape.heads, shape.size)
        keys, values = (x.new_empty(count * shape.kv_heads, shape.size) for _ in range(2))
        places = np.arange(count * shape.kv_heads).reshape(count, shape.kv_heads)
        normed = _room(x, x.shape[1])
        for rows in _chunks(count):
            here = normed[: rows.stop - rows.start]
            normalize(x[rows].numpy(), small, here.numpy())
            if bias is None:
                torch.mm(here, matrix.T, out=projected[rows])
            else:
                torch.addmm(bias, here, matrix.T, out=projected[rows])
            shape.kernels.place(
                projected[rows].numpy(),
                scale.detach().numpy(),
                shape.small,
                cos[rows],
                sin[rows],
                keys.numpy(),
                values.numpy(),
                places[rows],
                queries[rows].numpy(),
            )
        ctx.save_for_backward(x, projected, matrix, scale)
        ctx.rest = small, cos, sin, shape
        of_tokens = count, shape.kv_heads, shape.size
        return queries, keys.view(of_tokens), values.view(of_tokens)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, projected, matrix, scale = ctx.saved_tensors
        small, cos, sin, shape = ctx.rest
        _, _, to_matrix, to_bias = (
            torch.zeros_like(like) if wanted else None
            for like, wanted in zip(
                (x, x, matrix, matrix[:, 0]), ctx.needs_input_grad[:4], strict=True
            )
        )
        dx, to_scale = torch.zeros_like(x), torch.zeros_like(scale)
        queries, keys, values = (one.contiguous() for one in (queries, keys, values))
        normed, to_normed, to_projected = (
            _room(x, width) for width in (x.shape[1], x.shape[1], len(matrix))
        )
        for rows in _chunks(len(x)):
            size = rows.stop - rows.start
            g = to_projected[:size]
            heads_gradient(
                projected[rows].numpy(),
                scale.detach().numpy(),
                shape.small,
                shape.normalized,
                cos[rows],
                sin[rows],
                queries[rows].numpy(),
                keys[rows].numpy(),
                values[rows].numpy(),
                g.numpy(),
                to_scale.numpy(),
            )
            if to_matrix is not None:
                normalize(x[rows].numpy(), small, normed[:size].numpy())
                torch.addmm(to_matrix, g.T, normed[:size], out=to_matrix)
            if to_bias is not None:
                to_bias += g.sum(0)
            torch.mm(g, matrix, out=to_normed[:size])
            normalize_gradient(to_normed[:size].numpy(), x[rows].numpy(), small, dx[rows].numpy())
        return dx, None, to_matrix, to_bias, to_scale, None, None, None


class Finished(torch.autograd.Function):
    """y (N, W) = z + gated(z normalized · gate_upᵀ) · downᵀ, where z = x (N, W) + attended (N, A) · outputᵀ."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        attended: Tensor,
        small: float,
        output: Tensor,
        gate_up: Tensor,
        down: Tensor,
    ) -> Tensor:
        x, attended = x.detach(), attended.detach().contiguous()
        between, y = torch.empty_like(x), torch.empty_like(x)
        gates_ups = x.new_empty(len(x), len(gate_up))
        normed, gated = _room(x, x.shape[1]), _room(x, down.shape[1])
        for rows in _chunks(len(x)):
            size = rows.stop - rows.start
            torch.addmm(x[rows], attended[rows], output.T, out=between[rows])
            normalize(between[rows].numpy(), small, normed[:size].numpy())
            torch.mm(normed[:size], gate_up.T, out=gates_ups[rows])
            gate(gates_ups[rows].numpy(), gated[:size].numpy())
            torch.addmm(between[rows], gated[:size], down.T, out=y[rows])
        ctx.save_for_backward(between, attended, gates_ups, output, gate_up, down)
        ctx.small = small
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        between, attended, gates_ups, output, gate_up, down = ctx.saved_tensors
        to_output, to_gate_up, to_down = (
            torch.zeros_like(like) if wanted else None
            for like, wanted in zip((output, gate_up, down), ctx.needs_input_grad[3:], strict=True)
        )
        g = g.contiguous()
        dx, to_attended = g.clone(), torch.empty_like(attended)
        normed, to_normed, gated, to_gated, to_gates_ups = (
            _room(g, width)
            for width in (g.shape[1], g.shape[1], down.shape[1], down.shape[1], len(gate_up))
        )
        for rows in _chunks(len(g)):
            size = rows.stop - rows.start
            torch.mm(g[rows], down, out=to_gated[:size])
            gate_gradient(
                gates_ups[rows].numpy(),
                to_gated[:size].numpy(),
                gated[:size].numpy(),
                to_gates_ups[:size].numpy(),
            )
            if to_down is not None:
                torch.addmm(to_down, g[rows].T, gated[:size], out=to_down)
            if to_gate_up is not None:
                normalize(between[rows].numpy(), ctx.small, normed[:size].numpy())
                torch.addmm(to_gate_up, to_gates_ups[:size].T, normed[:size], out=to_gate_up)
            torch.mm(to_gates_ups[:size], gate_up, out=to_normed[:size])
            normalize_gradient(
                to_normed[:size].numpy(), between[rows].numpy(), ctx.small, dx[rows].numpy()
            )
            torch.mm(dx[rows], output, out=to_attended[rows])
            if to_output is not None:
                torch.addmm(to_output, dx[rows].T, attended[rows], out=to_output)
        return dx, to_attended, None, to_output, to_gate_up, to_down


def _chunks(count: int) -> Iterator[slice]:
    """Yield slices of `count` rows, of like size."""
    chunks = -(-count // ROWS)
    for chunk in range(chunks):
        yield slice(count * chunk // chunks, count * (chunk + 1) // chunks)


def _room(like: Tensor, width: int) -> Tensor:
    """Return room for a chunk's numbers."""
    return like.new_empty(min(ROWS, len(like)), width)
