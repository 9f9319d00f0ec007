"""Causal attention of packed sequences with shared prefixes.

Sequences are packed end to end, (T, ...). For attention they are padded, and its output is unpadded. A sequence may
continue another one, its **prefix**: the shared prompt of a group of runs is then computed once, and receives the summed
gradients of its continuations.

Every packing has `attend(q, k, v, rows)`, which returns (T, heads * D) for q (T, heads, D), k and v (T, kv_heads, D); or
(N, heads * D) of the tokens `rows` (N,) alone. With a `window`, a token attends to itself and the `window - 1` before it.
"""

from __future__ import annotations

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
    """Sequences, of which later ones continue some of the first.

    `prefixes` (S,) int64 holds the row of each sequence's prefix, or -1; those with -1 come first. A
    continuation attends to the whole of its prefix and to its own tokens so far.
    """

    def __init__(self, cu_seqlens: Tensor, prefixes: Tensor) -> None:
        device = cu_seqlens.device
        alone = int((prefixes < 0).sum())
        self.border = int(cu_seqlens[alone])
        self.alone = Packing(cu_seqlens[: alone + 1])
        self.continued = Packing(cu_seqlens[alone:])
        own = cu_seqlens[alone:-1]
        lengths = cu_seqlens[alone + 1 :] - own
        rows = prefixes[alone:]
        before = cu_seqlens[rows]
        shown = cu_seqlens[rows + 1] - before
        reach = torch.arange(int((shown + lengths).max()), device=device)
        # (S', K): index among the sequence's own tokens, if not negative.
        own_index = reach - shown[:, None]
        source = torch.where(own_index < 0, before[:, None] + reach, own[:, None] + own_index)
        # Keys past the end are masked below; their values do not matter.
        self.sources = torch.where(own_index < lengths[:, None], source, 0)
        steps = torch.arange(self.continued.longest, device=device)
        self.behind = (steps[:, None] - own_index[:, None, :]).unsqueeze(1)
        """(S', 1, L, K): how many tokens a key is behind a query; negative: later."""
        self._added: dict[tuple[torch.dtype, int | None], Tensor] = {}

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rows: Tensor | None = None,
        window: int | None = None,
    ) -> Tensor:
        border = self.border
        # One copy in the backward pass, unlike slices.
        queries, continued = q.tensor_split((border,))
        first = self.alone.attend(queries, k[:border], v[:border], window=window)
        attended = F.scaled_dot_product_attention(
            self.continued.pad(continued),
            self._gather(k),
            self._gather(v),
            attn_mask=self._mask(q.dtype, window),
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return chosen(rows, torch.cat((first, self.continued.unpad(attended))))

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
