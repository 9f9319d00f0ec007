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

from hud.engine.lora import LoraLinear
from hud.engine.models.attention import AnyPacking, chosen
from hud.engine.models.reference_decoder import Layer, RMSNorm
from hud_kernels.cpu.fused_layers import ELEMENTS, epsilon_of
from hud_kernels.cpu.layer_kernels import kernels_for
from hud_kernels.cpu.row_gradients import ROWS, gradients_for
from hud_kernels.cpu.team import run


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
    inputs: list[Tensor | None] = []
    scales = []
    for projection in projections:
        adapter = projection if isinstance(projection, LoraLinear) else None
        layer = projection if adapter is None else adapter.base
        assert isinstance(layer, nn.Linear)
        inputs += [layer.weight, layer.bias]
        if adapter is not None and adapter.enabled:
            inputs += [adapter.lora_A, adapter.lora_B]
            scales.append(adapter.scale)
        else:
            inputs += [None, None]
            scales.append(0.0)
    return list(Projections.apply(x, scales, *inputs))  # type: ignore[no-untyped-call]


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
        run(gradients_for(out.dtype).gate, _threads(out), out, gates, ups, *out.shape)
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
    """y_i = x W_iᵀ + b_i + s_i (x A_iᵀ) B_iᵀ of one x (N, in), as one function.

    `tensors` are W_i (out_i, in), b_i (out_i,) or None, A_i (r, in) and B_i (out_i, r), or None and None, of each. Adapters are
    multiplied in the dtype of x.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scales: list[float], *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        layers = [tensors[start : start + 4] for start in range(0, len(tensors), 4)]
        firsts = [first.to(x.dtype) for _, _, first, _ in layers if first is not None]
        first = torch.cat(firsts) if firsts else x.new_empty(0, x.shape[1])
        low = torch.mm(x, first.T) if firsts else x.new_empty(len(x), 0)
        outs, seconds, column = [], [], 0
        for (weight, bias, _, second), scale in zip(layers, scales, strict=True):
            assert weight is not None
            out = F.linear(x, weight, bias)
            if second is not None:
                seconds.append(second.to(x.dtype) * scale)
                out.addmm_(low[:, column : column + second.shape[1]], seconds[-1].T)
                column += second.shape[1]
            outs.append(out)
        weights = [layer[0] for layer in layers]
        ctx.save_for_backward(x, first, low, *seconds, *weights)
        ctx.scales = scales
        ctx.adapters = next((layer[2].dtype for layer in layers if layer[2] is not None), None)
        ctx.ranks = [0 if layer[3] is None else layer[3].shape[1] for layer in layers]
        return tuple(outs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gs: Tensor) -> tuple[Any, ...]:
        x, first, low, *rest = ctx.saved_tensors
        adapted = sum(rank > 0 for rank in ctx.ranks)
        seconds, weights = iter(rest[:adapted]), rest[adapted:]
        needed = ctx.needs_input_grad
        to_x = gs[0].mm(weights[0]) if needed[0] else None
        to_low, column = torch.empty_like(low), 0
        to_tensors: list[Tensor | None] = []
        for index, (g, weight, rank) in enumerate(zip(gs, weights, ctx.ranks, strict=True)):
            if to_x is not None and index:
                to_x.addmm_(g, weight)
            of_weight, of_bias = needed[2 + 4 * index : 4 + 4 * index]
            to_tensors += [g.T.mm(x) if of_weight else None, g.sum(0) if of_bias else None]
            to_second = None
            if rank:
                columns = slice(column, column + rank)
                to_low[:, columns] = g.mm(next(seconds))
                to_second = g.T.mm(low[:, columns]).to(ctx.adapters).mul_(ctx.scales[index])
                column += rank
            to_tensors += [None, to_second]
        if adapted:
            if to_x is not None:
                to_x.addmm_(to_low, first)
            ranks = [rank for rank in ctx.ranks if rank]
            to_firsts = iter(to_low.T.mm(x).to(ctx.adapters).split_with_sizes(ranks))
            for index, rank in enumerate(ctx.ranks):
                if rank:
                    to_tensors[4 * index + 2] = next(to_firsts)
        return to_x, None, *to_tensors


def _threads(x: Tensor) -> int:
    """Return how many threads are worth their start."""
    return x.numel() // ELEMENTS
