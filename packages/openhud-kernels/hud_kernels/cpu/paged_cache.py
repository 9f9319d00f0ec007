"""The key-value cache of large models on a CPU: attention reads pages where they lie, on the threads that torch uses."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hud.engine.models.precision import slower_than_fp32
from hud.engine.sample.kv_cache import KVCache
from hud_kernels.cpu.kernels import Integers
from hud_kernels.cpu.paged_kernels import attend, store

DTYPES = (torch.float32, torch.bfloat16)
"""Dtypes of caches that the kernels read."""
WIDE = 64
"""Most new tokens of a row that the kernels attend with where the CPU has matrix instructions for the cache's dtype."""
ALONE = 4096
"""Most keys, all rows together, that one thread attends to faster than several."""


class PagedCache(KVCache):
    """Keys and values in `DTYPES`; those of a page lie in it as the columns of a matrix."""

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
        self._starts = np.array(starts)
        positions = self._starts[:, None] + np.arange(width)
        widest = -(-(max(starts) + width) // size)
        # What padding writes goes to the last page, which no token attends to.
        self._tables = np.full((self.rows, widest), self.size.pages)
        for row, pages in enumerate(tables):
            self._tables[row, : min(widest, len(pages))] = pages[:widest]
        self._page_numbers = np.take_along_axis(self._tables, positions // size, 1).ravel()
        self._offsets = (positions % size).ravel()
        self._shares = _shares(self._starts + width, torch.get_num_threads())
        dtype = self.keys.dtype
        self._mask: Tensor | None = None
        if width > WIDE and dtype != torch.float32 and not slower_than_fp32(dtype):
            reach = np.arange(widest * size)
            self._mask = torch.from_numpy(reach <= positions[:, None, :, None])
        return torch.from_numpy(positions.ravel())

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store keys and values (B * width, kv_heads, D) of the new tokens."""
        keys, values = self._layer(layer)
        store(keys, values, _numbers(k), _numbers(v), self._page_numbers, self._offsets)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Return the attention output (B * width, heads * D) of the new tokens' queries (B * width, heads, D)."""
        if self._mask is not None:
            return self._attend_by_matrices(layer, q, self._mask)
        keys, values = self._layer(layer)
        queries = q.detach().float().contiguous().numpy()
        queries = queries.reshape(self.rows, self.width, *queries.shape[1:])
        out = np.empty_like(queries)

        def part(share: slice) -> None:
            attend(
                queries[share], self._tables[share], self._starts[share], keys, values, out[share]
            )

        own, *others = self._shares
        running = [_helpers(len(others)).submit(part, share) for share in others]
        part(own)
        for other in running:
            other.result()
        return torch.from_numpy(out).view(len(q), -1).to(q.dtype)

    def _attend_by_matrices(self, layer: int, q: Tensor, mask: Tensor) -> Tensor:
        """Return what `attend` does, by torch's own attention over a copy of the pages: many queries pay for it."""
        tables = torch.from_numpy(self._tables)
        values = self.values[layer][tables].transpose(1, 2)  # (B, kv_heads, P, T, D)
        rows, heads, pages, tokens, size = values.shape
        keys = self.keys[layer].view(-1, heads, size, tokens)[tables].permute(0, 2, 1, 4, 3)
        attended = F.scaled_dot_product_attention(
            q.view(rows, self.width, -1, size).transpose(1, 2),
            keys.reshape(rows, heads, pages * tokens, size),
            values.reshape(rows, heads, pages * tokens, size),
            attn_mask=mask,
            enable_gqa=self.groups > 1,
        )
        return attended.transpose(1, 2).reshape(len(q), -1)

    def _layer(self, layer: int) -> tuple[Any, Any]:
        """Return the keys (pages, kv_heads, D, T) and values (pages, kv_heads, T, D) of a layer."""
        values = _numbers(self.values[layer])
        pages, heads, tokens, size = values.shape
        return _numbers(self.keys[layer]).reshape(pages, heads, size, tokens), values


def _numbers(x: Tensor) -> Any:
    """Return a tensor as an array: fp32, or the 16 bits of bfloat16 as integers."""
    x = x.detach().contiguous()
    return (x if x.dtype == torch.float32 else x.view(torch.int16)).numpy()


def _shares(keys: Integers, threads: int) -> list[slice]:
    """Divide rows that attend to so many `keys` (B,) among threads, in consecutive runs of about as many keys."""
    sums = np.cumsum(keys)
    threads = min(threads, len(keys)) if sums[-1] > ALONE else 1
    borders = np.searchsorted(sums, sums[-1] * np.arange(1, threads) / threads) + 1
    return [slice(*run) for run in pairwise([0, *map(int, borders), len(keys)]) if run[0] < run[1]]


@cache
def _helpers(count: int) -> ThreadPoolExecutor:
    """Return threads beside the one that computes."""
    return ThreadPoolExecutor(count, "hud-attend")
