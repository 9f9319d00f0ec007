"""How packed tokens attend: where each sequence lies, and what it continues.

Sequences are packed end to end, (T, ...). Attention alone needs them side by side: it pads them, and unpads what comes out.
On a CPU it takes one after the other where padding would be much of what it computes, and in one call of compiled code where
one core is to compute it all. A sequence may continue another one, its **prefix**: the prompt that a group of runs shares is
then computed once, and the gradients of all who continue it meet in it.

Every layout has `attend(q, k, v, rows)`, which returns (T, heads * D) for q (T, heads, D), k and v (T, kv_heads, D); or
(N, heads * D) of the tokens `rows` (N,) alone, where there are any.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hud.engine.cpu.compiled_attention import Attended
from hud.engine.cpu.kernels import Integers
from hud.engine.cpu.tiles import COLUMNS

BLOCK = 128
"""Queries of one sequence that attend at once, to no key behind the last of them."""
MOST_PADDED = 1.5
"""How many times the scores that are needed may be computed before sequences attend one after the other."""


def layout_of(
    cu_seqlens: Tensor, prefixes: Tensor | None, *, on_one_core: bool = False
) -> AnyLayout:
    """Return how packed sequences attend best; see `Decoder.hidden_packed` for the arguments.

    `on_one_core` says that one core has all of it to compute, in fp32, of heads that `OneCore` can take.
    """
    if on_one_core:
        return OneCore(cu_seqlens, prefixes)
    if cu_seqlens.device.type == "cpu":
        apart = Unpadded(cu_seqlens.tolist(), None if prefixes is None else prefixes.tolist())
        if apart.padded() > MOST_PADDED * apart.needed():
            return apart
    return Layout(cu_seqlens) if prefixes is None else SharedLayout(cu_seqlens, prefixes)


class Unpadded:
    """Sequences that attend one after the other. What continues which is as for `SharedLayout`."""

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
        found = 0
        for alone in (True, False):
            rows = [
                (length, before + length)
                for length, before, row in zip(
                    self.lengths, self.before, self.prefixes, strict=True
                )
                if (row < 0) == alone
            ]
            if rows:
                found += len(rows) * max(row[0] for row in rows) * max(row[1] for row in rows)
        return found

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None = None) -> Tensor:
        """See the module."""
        grouped = q.shape[1] != k.shape[1]
        later = self._later(q)
        reach = later.shape[1] - BLOCK
        keys, values = torch.split(k, self.lengths), torch.split(v, self.lengths)
        found = []
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
                found.append(attended.squeeze(0).transpose(0, 1).flatten(1))
        return chosen(rows, torch.cat(found))

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


class Layout:
    """Sequences that stand alone. A token attends to those before it in its own sequence."""

    def __init__(self, cu_seqlens: Tensor) -> None:
        lengths = cu_seqlens[1:] - cu_seqlens[:-1]
        self.rows, self.longest = len(lengths), int(lengths.max()) if len(lengths) else 0
        self.single = self.rows == 1
        device = cu_seqlens.device
        row = torch.repeat_interleave(torch.arange(self.rows, device=device), lengths)
        starts = cu_seqlens[:-1] - cu_seqlens[0]
        self.index = row * self.longest + torch.arange(len(row), device=device) - starts[row]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None = None) -> Tensor:
        """See the module."""
        grouped = q.shape[1] != k.shape[1]
        q, k, v = self.pad(q), self.pad(k), self.pad(v)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return chosen(rows, self.unpad(attended))

    def pad(self, x: Tensor) -> Tensor:
        """(T, heads, D) to (S, heads, L, D). Padding stands behind every real token, so causality hides it."""
        if self.single:
            return x.transpose(0, 1).unsqueeze(0)
        padded = x.new_zeros(self.rows * self.longest, *x.shape[1:]).index_copy(0, self.index, x)
        return padded.view(self.rows, self.longest, *x.shape[1:]).transpose(1, 2)

    def unpad(self, x: Tensor) -> Tensor:
        """(S, heads, L, D) to (T, heads * D)."""
        flat = x.transpose(1, 2).reshape(self.rows * self.longest, -1)
        return flat if self.single else flat.index_select(0, self.index)


class SharedLayout:
    """Sequences of which the later ones continue some of the first.

    `prefixes` (S,) int64 holds the row of each sequence's prefix, or -1; those with -1 come first. A
    continuation attends to the whole of its prefix and to its own tokens so far.
    """

    def __init__(self, cu_seqlens: Tensor, prefixes: Tensor) -> None:
        device = cu_seqlens.device
        alone = int((prefixes < 0).sum())
        self.border = int(cu_seqlens[alone])
        self.alone = Layout(cu_seqlens[: alone + 1])
        self.continued = Layout(cu_seqlens[alone:])
        own = cu_seqlens[alone:-1]
        lengths = cu_seqlens[alone + 1 :] - own
        rows = prefixes[alone:]
        before = cu_seqlens[rows]
        shown = cu_seqlens[rows + 1] - before
        reach = torch.arange(int((shown + lengths).max()), device=device)
        mine = (
            reach - shown[:, None]
        )  # (S', K): place among the sequence's own tokens, if not negative
        source = torch.where(mine < 0, before[:, None] + reach, own[:, None] + mine)
        # Keys past the end are never allowed below; they only need to exist.
        self.sources = torch.where(mine < lengths[:, None], source, 0)
        steps = torch.arange(self.continued.longest, device=device)
        self.allowed = (mine[:, None, :] <= steps[:, None]).unsqueeze(1)  # (S', 1, L, K)
        self._added: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None = None) -> Tensor:
        """See the module."""
        border = self.border
        queries, continued = q.tensor_split(
            (border,)
        )  # One copy in the backward pass, as slices are not.
        first = self.alone.attend(queries, k[:border], v[:border])
        attended = F.scaled_dot_product_attention(
            self.continued.pad(continued),
            self._gather(k),
            self._gather(v),
            attn_mask=self._mask(q.dtype),
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return chosen(rows, torch.cat((first, self.continued.unpad(attended))))

    def _mask(self, dtype: torch.dtype) -> Tensor:
        """Return what is added to scores: made once, where attention would make it of `allowed` in every layer."""
        if self._added is None or self._added.dtype != dtype:
            zeros = torch.zeros(self.allowed.shape, dtype=dtype, device=self.allowed.device)
            self._added = zeros.masked_fill_(~self.allowed, -torch.inf)
        return self._added

    def _gather(self, x: Tensor) -> Tensor:
        """(T, kv_heads, D) to (S', kv_heads, K, D): what each continuation can see, prefix first."""
        rows, reach = self.sources.shape
        seen = x.index_select(0, self.sources.flatten())
        return seen.view(rows, reach, *x.shape[1:]).transpose(1, 2)


class OneCore:
    """Sequences that one core attends with, in compiled code. What continues which is as for `SharedLayout`."""

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
        """See the module."""
        spans = self.whole if rows is None else self.spans(rows.numpy())
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


def chosen(rows: Tensor | None, x: Tensor) -> Tensor:
    """Return the rows (N,) of x, all of them where none are named."""
    return x if rows is None else x.index_select(0, rows)


AnyLayout = Layout | SharedLayout | Unpadded | OneCore
