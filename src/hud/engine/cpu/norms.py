"""Norms and rotations with gradients written out, for training on a CPU.

There torch takes a norm apart into six operations, and its gradient into three times as many; each reads and writes
all activations. Written out, both are a few. On other devices, compiled, in other types than fp32 and where no
gradient is asked for, the plain formulas are used. What comes out is the same to the bit; gradients round differently.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hud.engine.decoder import RMSNorm, rotate


def normed(norm: RMSNorm, x: Tensor) -> Tensor:
    """Return what `norm` makes of x (..., H)."""
    if _written_out(x):
        output: Tensor = Normed.apply(x, norm.weight, norm.eps)  # type: ignore[no-untyped-call]
        return output
    plain: Tensor = norm(x)
    return plain


def normed_rotated(norm: RMSNorm, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the norm of x (N, heads, D), positions applied."""
    if _written_out(x):
        output: Tensor = NormedRotated.apply(x, norm.weight, cos, sin, norm.eps)  # type: ignore[no-untyped-call]
        return output
    return rotate(norm(x), cos, sin)


def _written_out(x: Tensor) -> bool:
    """Return whether the functions below are the better way to compute with x."""
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )


class Normed(torch.autograd.Function):
    """y = w x / rms(x) of x (..., D), w (D,), where rms(x)² = mean(x²) + eps.

    With n = x / rms(x):  dw = Σ g n,  dx = (g w - n mean(g w n)) / rms(x).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = _inverse_rms(x, eps)
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        dx, dw = _norm_gradient(g, x * scale, weight, scale, ctx.needs_input_grad[1])
        return dx, dw, None


class NormedRotated(torch.autograd.Function):
    """The norm of x (N, heads, D) and then rotary positions, cos and sin (N, 1, D): see `rotate`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float
    ) -> Tensor:
        scale = _inverse_rms(x, eps)
        normed = x * scale
        ctx.save_for_backward(normed, weight, scale, cos, sin)
        return rotate(normed * weight, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        normed, weight, scale, cos, sin = ctx.saved_tensors
        back = rotate(g, cos, -sin)  # A rotation's gradient is the rotation back.
        dx, dw = _norm_gradient(back, normed, weight, scale, ctx.needs_input_grad[1])
        return dx, dw, None, None, None


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Return 1 / rms(x), (..., 1), to the bit what torch's norm multiplies by."""
    return x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()


def _norm_gradient(
    g: Tensor, normed: Tensor, weight: Tensor, scale: Tensor, trained: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of what was normed and, where it is trained, of the weight."""
    product = g * normed
    along = (product @ weight).unsqueeze(-1).div_(weight.shape[0])
    dx = (g * weight).addcmul_(normed, along, value=-1).mul_(scale)
    return dx, product.flatten(0, -2).sum(0) if trained else None
