"""Layers of a large model on a CPU in training passes: matrix products, and one kernel for what is between two of them.

torch computes a norm, a gate or a rotation by several operations, and keeps what each returns for the gradient. Here each is one
function with a gradient of its own, computed from its input. Projections that share an input are one function, too: their
adapters' first products are one, and no sum of gradients is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hud.engine.models.attention import AnyPacking, chosen
from hud.engine.models.reference_decoder import Layer, RMSNorm
from hud_kernels.cpu.fused_layers import ELEMENTS, epsilon_of
from hud_kernels.cpu.layer_kernels import kernels_for
from hud_kernels.cpu.low_rank import LowRank, weight_of
from hud_kernels.cpu.row_gradients import ROWS, gradients_for
from hud_kernels.cpu.team import run

ALL = slice(None)


def compute(
    layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, packing: AnyPacking, rows: Tensor | None
) -> Tensor:
    """Return a layer's output; see `Layer.packed`."""
    attention, mlp = layer.self_attn, layer.mlp
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    shape = len(x), -1, attention.head_dim
    q, k, v = (
        part.view(shape) for part in projected(normed(x, layer.input_layernorm), projections)
    )
    if attention.normalized:
        q, k = normed(q, attention.q_norm), normed(k, attention.k_norm)
    cos, sin = cos.view(len(x), -1), sin.view(len(x), -1)
    q, k = (Rotation.apply(part, cos, sin) for part in (q, k))  # type: ignore[no-untyped-call]
    [output] = projected(packing.attend(q, k, v, rows), [attention.o_proj])
    x = chosen(rows, x) + output
    gates, ups = projected(normed(x, layer.post_attention_layernorm), [mlp.gate_proj, mlp.up_proj])
    gated: Tensor = Gate.apply(gates, ups)  # type: ignore[no-untyped-call]
    [down] = projected(gated, [mlp.down_proj])
    return x + down


def normed(x: Tensor, norm: RMSNorm) -> Tensor:
    """Return the norm of x (..., H)."""
    output: Tensor = Norm.apply(x, norm.weight, norm.eps)  # type: ignore[no-untyped-call]
    return output


def projected(x: Tensor, projections: Sequence[nn.Module]) -> list[Tensor]:
    """Return the outputs (N, out_i) of projections, each with an adapter or without, of one input x (N, in)."""
    terms = LowRank(projections, len(x))
    layers = [(weight_of(projection), projection.bias) for projection in projections]
    tensors = *(tensor for layer in layers for tensor in layer), *terms.tensors
    return list(Projections.apply(x, terms, len(layers), *tensors))  # type: ignore[no-untyped-call]


class Norm(torch.autograd.Function):
    """The root-mean-square norm of x (..., H), times `weight` (H,)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        x = x.contiguous()
        out, rows = torch.empty_like(x), x.numel() // x.shape[-1]
        small = epsilon_of(epsilon)
        run(
            kernels_for(x.dtype).norm, _threads(x),
            out, x, 0, weight, small, rows, x.shape[-1],
        )  # fmt: skip
        ctx.save_for_backward(x, weight)
        ctx.small = small
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        size, rows = x.shape[-1], x.numel() // x.shape[-1]
        out, summed = torch.empty_like(x), None
        if ctx.needs_input_grad[1]:
            summed = x.new_empty(-(-rows // ROWS), size, dtype=torch.float32)
        run(
            gradients_for(x.dtype).norm_gradient, _threads(x),
            out, g.contiguous(), x, weight, ctx.small, 0 if summed is None else summed, rows, size,
        )  # fmt: skip
        return out, None if summed is None else summed.sum(0).to(weight.dtype), None


class Gate(torch.autograd.Function):
    """silu(gates) * ups of two tensors (N, M)."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, ups: Tensor) -> Tensor:
        out = torch.empty_like(gates)
        run(kernels_for(out.dtype).gate, _threads(out), out, gates, ups, *out.shape, out.shape[1])
        ctx.save_for_backward(gates, ups)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        gates, ups = ctx.saved_tensors
        to_gates, to_ups = torch.empty_like(gates), torch.empty_like(ups)
        tensors = to_gates, to_ups, gates, ups, g.contiguous()
        run(gradients_for(g.dtype).gate_gradient, _threads(g), *tensors, *g.shape)
        return to_gates, to_ups


class Rotation(torch.autograd.Function):
    """Heads x (N, H, D), turned by the angles of `cos` and `sin` (N, D)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return Rotation.turned(x, cos, sin, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return Rotation.turned(g, *ctx.saved_tensors, back=True), None, None

    @staticmethod
    def turned(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool) -> Tensor:
        """Return x (N, H, D) turned, or turned back."""
        x = x.contiguous()
        out = torch.empty_like(x)
        run(gradients_for(x.dtype).rotate, _threads(x), out, x, cos, sin, *x.shape, int(back))
        return out


class Projections(torch.autograd.Function):
    """y_i = x W_iᵀ + b_i, and the low-rank `terms`, of one x (N, in), as one function.

    `tensors` are W_i (out_i, in) and b_i (out_i,) or None of each of `count` layers, then those of `terms`.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, terms: LowRank, count: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        weights, biases = tensors[: 2 * count : 2], tensors[1 : 2 * count : 2]
        outs = tuple(map(F.linear, [x] * count, weights, biases))
        terms.add(ALL, x, outs)
        ctx.save_for_backward(x, *weights)
        ctx.terms = terms
        return outs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gs: Tensor) -> tuple[Any, ...]:
        x, *weights = ctx.saved_tensors
        needed = ctx.needs_input_grad
        to_x = gs[0].mm(weights[0]) if needed[0] else None
        to_layers: list[Tensor | None] = []
        for index, (g, weight) in enumerate(zip(gs, weights, strict=True)):
            if to_x is not None and index:
                to_x.addmm_(g, weight)
            of_weight, of_bias = needed[3 + 2 * index : 5 + 2 * index]
            to_layers += [g.T.mm(x) if of_weight else None, g.sum(0) if of_bias else None]
        ctx.terms.collect(ctx.terms.pull(ALL, gs, to_x), x)
        return to_x, None, None, *to_layers, *ctx.terms.gradients


def _threads(x: Tensor) -> int:
    """Return how many threads are worth their start."""
    return x.numel() // ELEMENTS
