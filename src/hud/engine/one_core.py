"""Packed sequences that one core attends with, in compiled code: nothing is padded, gathered or copied for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hud.engine.attention_kernels import attend, attend_gradient
from hud.engine.kernels import Integers
from hud.engine.tiles import COLUMNS


class OneCore:
    """Sequences, what continues which being as for `SharedLayout`."""

    def __init__(self, cu_seqlens: Tensor, prefixes: Tensor | None) -> None:
        self.starts = cu_seqlens.numpy()
        count = len(self.starts) - 1
        self.prefixes = np.full(count, -1) if prefixes is None else prefixes.numpy()
        self.whole = np.stack([np.arange(count), self.starts[:-1], self.starts[1:]], axis=1)

    @staticmethod
    def takes(head_size: int) -> bool:
        """Return whether heads have a size that the compiled code can take."""
        return head_size % COLUMNS == 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None = None) -> Tensor:
        """See `layout`."""
        spans = self.whole if rows is None else self.spans(rows.numpy())
        attended: Tensor = Attended.apply(q, k, v, self.starts, self.prefixes, spans)  # type: ignore[no-untyped-call]
        return attended if rows is None else attended.index_select(0, rows)

    def spans(self, rows: Integers) -> Integers:
        """Return (M, 3): the sequence, and from and up to which token, of tokens (N,) that lie side by side."""
        tokens = np.unique(rows)
        sequences = np.searchsorted(self.starts, tokens, side="right") - 1
        begins = np.diff(tokens, prepend=-2) != 1
        begins |= np.diff(sequences, prepend=-1) != 0
        first, last = np.flatnonzero(begins), np.flatnonzero(np.roll(begins, -1))
        return np.stack([sequences[first], tokens[first], tokens[last] + 1], axis=1)


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
