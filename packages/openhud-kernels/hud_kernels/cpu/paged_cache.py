"""The key-value cache of large models on a CPU: attention reads pages where they lie, on the threads that torch uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hud.engine.models.precision import slower_than_fp32
from hud.engine.sample.kv_cache import KVCache
from hud_kernels.cpu.paged_kernels import TOKENS, kernels_for
from hud_kernels.cpu.team import Work, run

WIDE = 64
"""Most new tokens of a row that the kernels attend with where the CPU has matrix instructions for the cache's dtype."""
PLACED = 32
"""New tokens that one thread places before another one is worth its start."""
ALONE = 4096
"""Most keys, all rows together, to which one thread attends faster than several."""

Norms = tuple[Tensor, Tensor, Tensor]
"""Weights (D,) of the norms of queries and keys, and their epsilon (1,) in fp32."""


class PagedCache(KVCache):
    """Keys and values in a dtype of `KINDS`; those of a page lie in it as the columns of a matrix."""

    def aim(
        self,
        tables: Sequence[Sequence[int]],
        starts: Sequence[int],
        ends: Sequence[int],
        width: int,
    ) -> Tensor:
        """Prepare for `width` new tokens in each row; see `KVCache.aim`."""
        size = self.size.page_tokens
        self.rows, self.width = len(tables), width
        first = torch.tensor(starts)
        positions = first[:, None] + torch.arange(width)
        widest = -(-(max(starts) + width) // size)
        # What padding writes goes to the last page, which no token attends to.
        spill = [self.size.pages] * widest
        tables_now = [[*pages[:widest], *spill[len(pages) :]] for pages in tables]
        self._starts, self._tables = first, torch.tensor(tables_now)
        pages = self._tables.gather(1, positions // size).flatten()
        self._targets = pages, (positions % size).flatten()
        self._longest = max(starts) + width
        self._keys = sum(starts) + self.rows * width
        dtype = self.keys.dtype
        self._kernels = kernels_for(dtype)
        self._mask: Tensor | None = None
        if width > WIDE and dtype != torch.float32 and not slower_than_fp32(dtype):
            self._mask = torch.arange(self._longest) <= positions[:, None, :, None]
        return positions.flatten()

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store keys and values (B * width, kv_heads, D) of the new tokens."""
        pages, places = self._targets
        keys, values = self._layer(layer)
        keys[pages, :, :, places], values[pages, :, places] = k, v

    def place(
        self, layer: int, projected: Tensor, cos: Tensor, sin: Tensor, norms: Norms | None
    ) -> Tensor:
        """Store keys and values of the projections (N, (heads + 2 kv_heads) * D) of the new tokens; return their queries.

        Queries (N, heads, D) and keys are turned by the angles' `cos` and `sin` (N, 1, D), after `norms`.
        """
        rows, size = len(projected), self.keys.shape[-1]
        heads = projected.shape[1] // size - 2 * self.kv_heads
        queries = projected.new_empty(rows, heads, size)
        arrays = projected, queries, *self._targets, cos, sin, *(norms or (0, 0, 0))
        self._run(self._kernels.place, rows // PLACED, layer, arrays, rows, heads)
        return queries

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Return the attention output (B * width, heads * D) of the new tokens' queries (B * width, heads, D)."""
        if self._mask is not None:
            return self._attend_by_matrices(layer, q, self._mask)
        q = q.contiguous()
        out, runs = torch.empty_like(q), -(-self.width // TOKENS)
        units = self.rows * self.kv_heads * runs if self._keys > ALONE else 1
        arrays = q, out, self._tables, self._starts
        sizes = self.rows, self.width, q.shape[1], self._tables.shape[1], self._longest
        self._run(self._kernels.attend, units, layer, arrays, *sizes)
        return out.view(len(q), -1)

    def _run(
        self, task: Work, most: int, layer: int, arrays: Iterable[Tensor | int], *sizes: int
    ) -> None:
        """Call a kernel with a layer's keys and values."""
        pages, heads, tokens, size = self.values.shape[1:]
        stored = self.keys[layer], self.values[layer]
        run(task, most, *stored, *arrays, pages, heads, tokens, size, *sizes)

    def _layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys (pages, kv_heads, D, T) and values (pages, kv_heads, T, D) of a layer."""
        values = self.values[layer]
        pages, heads, tokens, size = values.shape
        return self.keys[layer].view(pages, heads, size, tokens), values

    def _attend_by_matrices(self, layer: int, q: Tensor, mask: Tensor) -> Tensor:
        """Return what `attend` does, by torch's own attention over a copy of the pages: many queries pay for it."""
        values = self.values[layer][self._tables].transpose(1, 2)  # (B, kv_heads, P, T, D)
        rows, heads, pages, tokens, size = values.shape
        keys = self._layer(layer)[0][self._tables].permute(0, 2, 1, 4, 3)
        fresh = self._longest == self.width  # All keys are new: later ones are skipped, not masked.
        attended = F.scaled_dot_product_attention(
            q.view(rows, self.width, -1, size).transpose(1, 2),
            keys.reshape(rows, heads, pages * tokens, size)[:, :, : self._longest],
            values.reshape(rows, heads, pages * tokens, size)[:, :, : self._longest],
            attn_mask=None if fresh else mask,
            is_causal=fresh,
            enable_gqa=self.groups > 1,
        )
        return attended.transpose(1, 2).reshape(len(q), -1)
