"""Causal attention of packed sequences that form trees.

Sequences are packed end to end, (T, ...). For attention they are padded, and its output is unpadded. A sequence may
continue another one, its **prefix**, and that one a further one: what several runs begin with is then computed once, and
receives the summed gradients of its continuations.

Every packing has `attend(q, k, v, rows)`, which returns (T, heads * D) for q (T, heads, D), k and v (T, kv_heads, D); or
(N, heads * D) of the tokens `rows` (N,) alone. With a `window`, a token attends to itself and the `window - 1` before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class AnyPacking(Protocol):
    """Attention of packed sequences; see the module."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the heads' output (T, heads * D), or (N, heads * D) of `rows` (N,)."""


def packing_of(cu_seqlens: Tensor, prefixes: Tensor | None) -> Packing | SharedPacking:
    """Return the packing of sequences; see `Decoder.hidden_packed` for the arguments."""
    return Packing(cu_seqlens) if prefixes is None else SharedPacking(cu_seqlens, prefixes)


def chains(prefixes: Sequence[int]) -> list[list[int]]:
    """Return for each row those that it attends to: the chain of its prefixes, the root first, and itself."""
    rows: list[list[int]] = []
    for row, prefix in enumerate(prefixes):
        rows.append([*rows[prefix], row] if prefix >= 0 else [row])
    return rows


def chosen(rows: Tensor | None, x: Tensor) -> Tensor:
    """Return the rows (N,) of x; all of them where `rows` is None."""
    return x if rows is None else x.index_select(0, rows)


class Packing:
    """Independent sequences. A token attends to those before it in its own sequence."""

    def __init__(self, cu_seqlens: Tensor) -> None:
        lengths = cu_seqlens[1:] - cu_seqlens[:-1]
        self.rows, self.longest = len(lengths), int(lengths.max()) if len(lengths) else 0
        self.single = self.rows == 1
        device = cu_seqlens.device
        row = torch.repeat_interleave(torch.arange(self.rows, device=device), lengths)
        starts = cu_seqlens[:-1] - cu_seqlens[0]
        self.index = row * self.longest + torch.arange(len(row), device=device) - starts[row]

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rows: Tensor | None = None,
        window: int | None = None,
    ) -> Tensor:
        grouped = q.shape[1] != k.shape[1]
        q, k, v = self.pad(q), self.pad(k), self.pad(v)
        mask = None
        if window is not None and window < self.longest:
            steps = torch.arange(self.longest, device=q.device)
            behind = steps[:, None] - steps
            mask = (behind >= 0) & (behind < window)
        attended = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
        )
        return chosen(rows, self.unpad(attended))

    def pad(self, x: Tensor) -> Tensor:
        """(T, heads, D) to (S, heads, L, D). Padding follows the real tokens, so the causal mask hides it."""
        if self.single:
            return x.transpose(0, 1).unsqueeze(0)
        padded = x.new_zeros(self.rows * self.longest, *x.shape[1:]).index_copy(0, self.index, x)
        return padded.view(self.rows, self.longest, *x.shape[1:]).transpose(1, 2)

    def unpad(self, x: Tensor) -> Tensor:
        """(S, heads, L, D) to (T, heads * D)."""
        flat = x.transpose(1, 2).reshape(self.rows * self.longest, -1)
        return flat if self.single else flat.index_select(0, self.index)


class SharedPacking:
    """Sequences of which some continue others.

    `prefixes` (S,) int64 holds the row of each sequence's prefix, which is an earlier one, or -1. A continuation attends to
    the whole of its prefix, to all that this attends to, and to its own tokens so far.
    """

    def __init__(self, cu_seqlens: Tensor, prefixes: Tensor) -> None:
        bounds = list(pairwise(cu_seqlens.tolist()))
        by_depth: dict[int, list[list[int]]] = {}
        for chain in chains(prefixes.tolist()):
            by_depth.setdefault(len(chain), []).append(chain)
        device = cu_seqlens.device
        self.levels = [_Level(bounds, level, device) for _, level in sorted(by_depth.items())]
        order = torch.cat([level.tokens for level in self.levels])
        self.places = torch.empty_like(order)
        """(T,) int64: place of each token's output among those of all levels."""
        self.places[order] = torch.arange(len(order), device=device)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rows: Tensor | None = None,
        window: int | None = None,
    ) -> Tensor:
        attended = torch.cat([level.attend(q, k, v, window) for level in self.levels])
        return attended.index_select(0, chosen(rows, self.places))


class _Level:
    """The sequences with equally many prefixes, each with its chain of rows; `bounds`: where each row begins and ends."""

    def __init__(
        self,
        bounds: Sequence[tuple[int, int]],
        level: Sequence[Sequence[int]],
        device: torch.device,
    ) -> None:
        own = [torch.arange(*bounds[chain[-1]]) for chain in level]
        keys = [torch.cat([torch.arange(*bounds[row]) for row in chain]) for chain in level]
        ends = torch.tensor([0, *map(len, own)]).cumsum(0)
        self.packing = Packing(ends.to(device))
        self.tokens = torch.cat(own).to(device)
        """(T',) int64: those of the level."""
        self.roots = len(level[0]) == 1
        if self.roots:
            return
        reach = torch.arange(max(map(len, keys)))
        before = torch.tensor([len(seen) - len(part) for seen, part in zip(keys, own, strict=True)])
        # Keys past the end are masked below; their values do not matter.
        sources = torch.nn.utils.rnn.pad_sequence(keys, batch_first=True)
        self.sources = sources.to(device)
        """(S', K) int64: the keys of each continuation, its prefixes' first."""
        own_index = reach - before[:, None]
        steps = torch.arange(self.packing.longest)
        self.behind = (steps[:, None] - own_index[:, None, :]).unsqueeze(1).to(device)
        """(S', 1, L, K): how many tokens a key is behind a query; negative: later."""
        self._added: dict[tuple[torch.dtype, int | None], Tensor] = {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        """Return (T', heads * D) of the level's tokens."""
        queries = q.index_select(0, self.tokens)
        if self.roots:
            keys, values = k.index_select(0, self.tokens), v.index_select(0, self.tokens)
            return self.packing.attend(queries, keys, values, window=window)
        attended = F.scaled_dot_product_attention(
            self.packing.pad(queries),
            self._gather(k),
            self._gather(v),
            attn_mask=self._mask(q.dtype, window),
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return self.packing.unpad(attended)

    def _mask(self, dtype: torch.dtype, window: int | None) -> Tensor:
        """Return the additive mask of scores, computed once for all layers with the same window."""
        key = dtype, window
        if key not in self._added:
            hidden = self.behind < 0
            if window is not None:
                hidden = hidden | (self.behind >= window)
            zeros = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            self._added[key] = zeros.masked_fill_(hidden, -torch.inf)
        return self._added[key]

    def _gather(self, x: Tensor) -> Tensor:
        """(T, kv_heads, D) to (S', kv_heads, K, D): the keys or values of each continuation, prefix first."""
        rows, reach = self.sources.shape
        seen = x.index_select(0, self.sources.flatten())
        return seen.view(rows, reach, *x.shape[1:]).transpose(1, 2)
