"""Attention of packed sequences on a CPU: without padding, and in one compiled call on one thread (`attention_kernels`)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from hud.engine.models.attention import AnyPacking, chosen
from hud.engine.models.attention import packing_of as padded_packing
from hud_kernels.cpu.attention_kernels import attend, attend_gradient
from hud_kernels.cpu.kernels import Integers
from hud_kernels.cpu.matmul_kernels import COLUMNS

BLOCK = 128
"""Queries of one sequence that attend at once, to no key behind the last of them."""
MOST_PADDED = 1.5
"""Ratio of computed to needed scores above which sequences attend one after the other, without padding."""


def packing_of(
    cu_seqlens: Tensor, prefixes: Tensor | None, *, one_core_head: int | None = None
) -> AnyPacking:
    """Return the packing that computes least; see `Decoder.hidden_packed` for the arguments.

    `one_core_head`: the size of a head, where one thread computes in fp32.
    """
    if one_core_head is not None and one_core_head % COLUMNS == 0:
        return OneCore(cu_seqlens, prefixes)
    if cu_seqlens.device.type == "cpu":
        apart = Unpadded(cu_seqlens.tolist(), None if prefixes is None else prefixes.tolist())
        if apart.padded() > MOST_PADDED * apart.needed():
            return apart
    return padded_packing(cu_seqlens, prefixes)


class Unpadded:
    """Sequences that attend one after the other; prefixes as for `SharedPacking`."""

    def __init__(self, cu_seqlens: list[int], prefixes: list[int] | None) -> None:
        self.lengths = [end - start for start, end in pairwise(cu_seqlens)]
        self.prefixes = prefixes or [-1] * len(self.lengths)
        self.before = [0 if row < 0 else self.lengths[row] for row in self.prefixes]
        self._added: Tensor | None = None

    def needed(self) -> int:
        """Return how many scores are computed here for each head."""
        return sum(
            (end - start) * (before + end)
            for length, before in zip(self.lengths, self.before, strict=True)
            for start, end in _blocks(length)
        )

    def padded(self) -> int:
        """Return how many would be with padding: those of sequences that stand alone, and those of the others."""
        pairs = 0
        for alone in (True, False):
            rows = [
                (length, before + length)
                for length, before, row in zip(
                    self.lengths, self.before, self.prefixes, strict=True
                )
                if (row < 0) == alone
            ]
            if rows:
                pairs += len(rows) * max(row[0] for row in rows) * max(row[1] for row in rows)
        return pairs

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None = None) -> Tensor:
        grouped = q.shape[1] != k.shape[1]
        later = self._later(q)
        reach = later.shape[1] - BLOCK
        keys, values = torch.split(k, self.lengths), torch.split(v, self.lengths)
        outputs = []
        for row, queries in enumerate(torch.split(q, self.lengths)):
            before, prefix = self.before[row], self.prefixes[row]
            seen = [
                part[row] if prefix < 0 else torch.cat((part[prefix], part[row]))
                for part in (keys, values)
            ]
            for start, end in _blocks(len(queries)):
                shown, first = before + end, reach - before - start
                attended = F.scaled_dot_product_attention(
                    _of_heads(queries[start:end]),
                    _of_heads(seen[0][:shown]),
                    _of_heads(seen[1][:shown]),
                    attn_mask=later[: end - start, first : first + shown],
                    enable_gqa=grouped,
                )
                outputs.append(attended.squeeze(0).transpose(0, 1).flatten(1))
        return chosen(rows, torch.cat(outputs))

    def _later(self, q: Tensor) -> Tensor:
        """Return what is added to scores, (BLOCK, R + BLOCK): minus infinity behind the diagonal that begins in column R."""
        if self._added is None or self._added.dtype != q.dtype:
            reach = max(b + n for b, n in zip(self.before, self.lengths, strict=True))
            wide = torch.full((BLOCK, reach + BLOCK), -torch.inf, dtype=q.dtype, device=q.device)
            self._added = wide.triu_(reach + 1)
        return self._added


def _of_heads(x: Tensor) -> Tensor:
    """(L, heads, D) to (1, heads, L, D)."""
    return x.transpose(0, 1).unsqueeze(0)


def _blocks(length: int) -> Iterator[tuple[int, int]]:
    for start in range(0, length, BLOCK):
        yield start, min(start + BLOCK, length)


class OneCore:
    """Sequences whose attention one thread computes in compiled code; prefixes as for `SharedPacking`."""

    def __init__(self, cu_seqlens: Tensor, prefixes: Tensor | None) -> None:
        self.starts = cu_seqlens.numpy()
        count = len(self.starts) - 1
        self.prefixes = np.full(count, -1) if prefixes is None else prefixes.numpy()
        self.all_spans = np.stack([np.arange(count), self.starts[:-1], self.starts[1:]], axis=1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None = None) -> Tensor:
        spans = self.all_spans if rows is None else self.spans(rows.numpy())
        attended: Tensor = Attended.apply(q, k, v, self.starts, self.prefixes, spans)  # type: ignore[no-untyped-call]
        return chosen(rows, attended)

    def spans(self, rows: Integers) -> Integers:
        """Return (M, 3): the sequence, and from and up to which token, of tokens (N,) that lie side by side."""
        tokens = np.unique(rows)
        sequences = np.searchsorted(self.starts, tokens, side="right") - 1
        begins = np.diff(tokens, prepend=-2) != 1
        begins |= np.diff(sequences, prepend=-1) != 0
        first, last = np.flatnonzero(begins), np.flatnonzero(np.roll(begins, -1))
        return np.stack([sequences[first], tokens[first], tokens[last] + 1], axis=1)


class Attended(torch.autograd.Function):
    """Attention output (T, H * D) of queries (T, H, D) over keys and values (T, K, D); see `attention_kernels.attend`.

    Rows outside `spans` are undefined.
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
        q, k, v = (tensor.detach().contiguous() for tensor in (q, k, v))
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
        # Queries outside the spans get zero.
        to_q = torch.empty_like(q) if ctx.of_all else torch.zeros_like(q)
        to_k, to_v = torch.zeros_like(k), torch.zeros_like(v)
        attend_gradient(
            *(tensor.numpy() for tensor in (q, k, v)),
            *ctx.places,
            *(tensor.numpy() for tensor in (out, masses, g.contiguous().view(q.shape))),
            *(tensor.numpy() for tensor in (to_q, to_k, to_v)),
        )
        return to_q, to_k, to_v, None, None, None
