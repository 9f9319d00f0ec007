"""Attention of packed sequences on a CPU: without padding or copies, and in one compiled call on one thread (`attention_kernels`)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hud.engine.models.attention import AnyPacking, chains, chosen
from hud.engine.models.attention import packing_of as padded_packing
from hud_kernels.cpu.attention_kernels import attend, attend_gradient
from hud_kernels.cpu.kernels import Integers
from hud_kernels.cpu.matmul_kernels import COLUMNS

BLOCK = 128
"""Queries of a sequence for which torch's kernel computes no key behind the last of them, about."""
MOST_PADDED = 1.2
"""Ratio of computed to needed scores above which sequences attend one after the other, without padding."""
MOST_COPIED = 2
"""Ratio of copied to packed keys above which they do, too: padding copies what a sequence continues."""
WIDENED = 1 << 17
"""Most scores of a head whose gradient is computed in fp32 where the rest is in half precision: torch's kernel for half precision
takes up to eight times as long for 50 x 50 scores of a head, as long for 400 x 400, and less for more."""


def packing_of(
    cu_seqlens: Tensor,
    prefixes: Tensor | None,
    *,
    one_core_head: int | None = None,
    half: bool = False,
) -> AnyPacking:
    """Return the packing that computes least; see `Decoder.hidden_packed` for the arguments.

    `one_core_head`: the size of a head, where one thread computes in fp32. `half`: whether it is computed in half precision.
    """
    if one_core_head is not None and one_core_head % COLUMNS == 0:
        return OneCore(cu_seqlens, prefixes)
    if cu_seqlens.device.type == "cpu":
        apart = Unpadded(cu_seqlens, prefixes)
        if half:
            return apart  # Its gradient is in fp32 where that is faster.
        scores, keys = apart.padded()
        if scores > MOST_PADDED * apart.needed() or keys > MOST_COPIED * int(cu_seqlens[-1]):
            return apart
    return padded_packing(cu_seqlens, prefixes)


@dataclass(frozen=True)
class Branch:
    """A sequence, and behind it all that continue it at any depth; by tokens."""

    start: int
    end: int
    """The end of the sequence itself."""
    reach: int
    """The end of the last one that continues it."""
    root: bool


class Unpadded:
    """Sequences that attend one after the other, each with all that continue it; prefixes as for `Decoder.hidden_packed`."""

    def __init__(self, cu_seqlens: Tensor, prefixes: Tensor | None) -> None:
        bounds = cu_seqlens.tolist()
        rows = list(pairwise(bounds))
        self.prefixes = [-1] * len(rows) if prefixes is None else prefixes.tolist()
        reach = bounds[1:]
        for row in reversed(range(len(rows))):
            if self.prefixes[row] >= 0:
                reach[self.prefixes[row]] = max(reach[self.prefixes[row]], reach[row])
        self.branches = [
            Branch(start, end, last, prefix < 0)
            for (start, end), last, prefix in zip(rows, reach, self.prefixes, strict=True)
        ]

    def needed(self) -> int:
        """Return how many scores are computed here for each head."""
        pairs = 0
        for branch in self.branches:
            length = branch.end - branch.start
            ends = [min(start + BLOCK, length) for start in range(0, length, BLOCK)]
            pairs += sum((end - start) * end for start, end in pairwise([0, *ends]))
            pairs += (branch.reach - branch.end) * length
        return pairs

    def padded(self) -> tuple[int, int]:
        """Return how many scores would be computed with padding, and how many keys copied, by `SharedPacking`."""
        levels = defaultdict[int, list[tuple[int, int]]](list)
        for chain in chains(self.prefixes):
            lengths = [self.branches[row].end - self.branches[row].start for row in chain]
            levels[len(chain)].append((lengths[-1], sum(lengths)))
        scores = keys = 0
        for level in levels.values():
            queries, seen = (max(column) for column in zip(*level, strict=True))
            scores += len(level) * queries * seen
            keys += len(level) * seen
        return scores, keys

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None = None) -> Tensor:
        attended: Tensor = BranchAttention.apply(q, k, v, self.branches)  # type: ignore[no-untyped-call]
        return chosen(rows, attended)


class BranchAttention(torch.autograd.Function):
    """Attention output (T, H * D) of queries (T, H, D) over keys and values (T, K, D), branch by branch.

    The queries of a branch attend to the keys of its first sequence in one call: under a causal mask, queries behind the last
    key see all of them. The outputs that a query gets from its branches are weighted by their shares of the softmax's sum,
    and with this sum each branch has its own part of the gradient (as in ring attention, arXiv 2310.01889).
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, branches: list[Branch]) -> Tensor:
        q, k, v = (tensor.detach().contiguous() for tensor in (q, k, v))
        exact = q.dtype if q.dtype == torch.float64 else torch.float32
        out = torch.empty_like(q, dtype=exact)
        masses = torch.empty(q.shape[:2], dtype=exact)  # log Σ e^score
        for branch in branches:
            queries, own = slice(branch.start, branch.reach), slice(branch.start, branch.end)
            part, mass = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                _of_heads(q[queries]), _of_heads(k[own]), _of_heads(v[own]), 0.0, True
            )
            part, mass = (tensor.squeeze(0).transpose(0, 1) for tensor in (part, mass))
            if branch.root:
                out[queries], masses[queries] = part, mass
                continue
            share = torch.sigmoid(mass - masses[queries]).unsqueeze(-1)
            out[queries].lerp_(part.to(exact), share)
            torch.logaddexp(masses[queries], mass, out=masses[queries])
        flat = q.new_empty(
            len(q), q.shape[1] * q.shape[2]
        )  # No view: compiled layers would be compiled anew.
        flat.view(q.shape).copy_(out)
        ctx.save_for_backward(q, k, v, flat, masses)
        ctx.branches = branches
        return flat

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, flat, masses = ctx.saved_tensors
        out, g = flat.view(q.shape), g.contiguous().view(q.shape)
        to_q, to_k, to_v = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
        for branch in ctx.branches:
            queries, own = slice(branch.start, branch.reach), slice(branch.start, branch.end)
            inputs = [g[queries], q[queries], k[own], v[own], out[queries]]
            if len(inputs[0]) * len(inputs[2]) <= WIDENED:
                inputs = [tensor.to(masses.dtype) for tensor in inputs]
            parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *map(_of_heads, inputs), _of_heads(masses[queries]), 0.0, True
            )
            of_q, of_k, of_v = (part.squeeze(0).transpose(0, 1) for part in parts)
            to_q[queries] += of_q
            to_k[own], to_v[own] = of_k, of_v
        return to_q, to_k, to_v, None


def _of_heads(x: Tensor) -> Tensor:
    """(L, heads, ...) to (1, heads, L, ...)."""
    return x.transpose(0, 1).unsqueeze(0)


class OneCore:
    """Sequences whose attention one thread computes in compiled code; prefixes as for `Decoder.hidden_packed`."""

    def __init__(self, cu_seqlens: Tensor, prefixes: Tensor | None) -> None:
        self.starts = cu_seqlens.numpy()
        count = len(self.starts) - 1
        rows = chains([-1] * count if prefixes is None else prefixes.tolist())
        self.chains = np.full((count, max(map(len, rows), default=1)), -1)
        for row, chain in enumerate(rows):
            self.chains[row, : len(chain)] = chain
        self.all_spans = np.stack([np.arange(count), self.starts[:-1], self.starts[1:]], axis=1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None = None) -> Tensor:
        spans = self.all_spans if rows is None else self.spans(rows.numpy())
        attended: Tensor = Attended.apply(q, k, v, self.starts, self.chains, spans)  # type: ignore[no-untyped-call]
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
        chains: Integers,
        spans: Integers,
    ) -> Tensor:
        q, k, v = (tensor.detach().contiguous() for tensor in (q, k, v))
        out, masses = torch.empty_like(q), q.new_empty(q.shape[:2])
        places = starts, chains, spans
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
