"""Attention of packed sequences on one core as an operation of torch's, with its gradient; see `attention_kernels`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hud.engine.cpu.attention_kernels import attend, attend_gradient
from hud.engine.cpu.kernels import Integers


class Attended(torch.autograd.Function):
    """What queries (T, H, D) attend to, (T, H D), among keys and values (T, K, D); see `attention_kernels.attend`.

    What is not asked for is undefined.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        starts: Integers,
        prefixes: Integers,
        spans: Integers,
    ) -> Tensor:
        q, k, v = (one.detach().contiguous() for one in (q, k, v))
        out, masses = torch.empty_like(q), q.new_empty(q.shape[:2])
        places = starts, prefixes, spans
        attend(q.numpy(), k.numpy(), v.numpy(), *places, out.numpy(), masses.numpy())
        ctx.save_for_backward(q, k, v, out, masses)
        ctx.places = places
        ctx.of_all = len(q) == int((spans[:, 2] - spans[:, 1]).sum())
        return out.flatten(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, masses = ctx.saved_tensors
        # Those of queries that nobody asks for are nothing.
        to_q = torch.empty_like(q) if ctx.of_all else torch.zeros_like(q)
        to_k, to_v = torch.zeros_like(k), torch.zeros_like(v)
        attend_gradient(
            *(one.numpy() for one in (q, k, v)),
            *ctx.places,
            *(one.numpy() for one in (out, masses, g.contiguous().view(q.shape))),
            *(one.numpy() for one in (to_q, to_k, to_v)),
        )
        return to_q, to_k, to_v, None, None, None
