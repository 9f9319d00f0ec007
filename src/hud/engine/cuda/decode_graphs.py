"""Decode steps recorded as CUDA graphs: one launch for each step instead of one for each of its operations.

Recorded for a few batch sizes; a batch takes the next larger one. How long sequences are does not matter, because
attention reads their page tables (`paged_attention`). Weights that change in place need nothing; weights that are
replaced, or added to, are recorded anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch
from torch import Tensor

from hud.engine.decoder import Decoder
from hud.engine.sample.kv_cache import KVCache


class GraphCache(KVCache):
    """A cache whose page tables a decode step reads on the device."""

    _step: tuple[Tensor, Tensor] | None = None
    """Page tables and lengths of a decode step; None: the pages are gathered."""

    def aim(
        self,
        tables: Sequence[Sequence[int]],
        starts: Sequence[int],
        ends: Sequence[int],
        width: int,
    ) -> Tensor:
        self._step = None
        return super().aim(tables, starts, ends, width)

    def aim_at_tables(self, tables: Tensor, starts: Tensor) -> Tensor:
        """Prepare for one new token in each row; return their positions (B,).

        `tables` (B, P) int64 holds each row's pages, `starts` (B,) int64 its cached tokens. No value of either is read on the
        host, so that a CUDA graph can record it.
        """
        size = self.size.page_tokens
        self._write_to(tables.gather(1, starts[:, None] // size), starts[:, None] % size)
        self._step = tables, starts + 1
        return starts

    def attend(self, layer: int, q: Tensor) -> Tensor:
        if self._step is None:
            return super().attend(layer, q)
        from hud.engine.cuda.paged_attention import paged_attention  # Needs triton.

        return paged_attention(q, self.keys[layer], self.values[layer], *self._step).flatten(1)


class DecodeGraphs:
    """The recorded steps of one decoder over one cache of small pages, for at most `most` sequences."""

    def __init__(self, decoder: Decoder, cache: GraphCache, most: int) -> None:
        self.decoder = decoder
        self._cache = cache
        self._sizes = batch_sizes(most)
        device, size = cache.keys.device, cache.size
        columns = -(-size.max_context // size.page_tokens)
        # A graph reads and writes the memory of its recording. Unused rows have the padding page.
        self._ids = torch.zeros(most, dtype=torch.long, device=device)
        self._starts = torch.zeros(most, dtype=torch.long, device=device)
        self._tables = torch.full((most, columns), size.pages, device=device)
        self._recorded: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._weights = self._places()

    def run(
        self, ids: Sequence[int], tables: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Tensor:
        """Compute one token for each sequence, after `starts` tokens in the pages of `tables`; return (B, H).

        What is returned is overwritten by the next run.
        """
        size = self._sizes[bisect_left(self._sizes, len(ids))]
        self._fill(rows_of(ids, tables, starts, size, self._cache.size.pages))
        if size not in self._recorded:
            self._recorded[size] = self._record(size)
        graph, hidden = self._recorded[size]
        graph.replay()
        return hidden[: len(ids)]

    def check(self) -> None:
        """Discard the recordings if the weights' memory addresses have changed."""
        weights = self._places()
        if weights != self._weights:
            self._weights = weights
            self._recorded.clear()

    def _places(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self.decoder.parameters()]

    def _fill(self, rows: Tensor) -> None:
        """Copy a batch to the graphs' input memory, in one transfer to the device."""
        count, columns = rows.shape[0], rows.shape[1] - 2
        staged = rows.pin_memory().to(self._ids.device, non_blocking=True)
        self._ids[:count].copy_(staged[:, 0])
        self._starts[:count].copy_(staged[:, 1])
        self._tables[:count, :columns].copy_(staged[:, 2:])

    def _record(self, size: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        # Warm-up: kernels are compiled and workspaces allocated before recording.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step(size)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # One pool for all: no two of them run at the same time.
        pool = next(iter(self._recorded.values()))[0].pool() if self._recorded else None
        # Other threads of this process may train meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            hidden = self._step(size)
        return graph, hidden

    def _step(self, size: int) -> Tensor:
        positions = self._cache.aim_at_tables(self._tables[:size], self._starts[:size])
        return self.decoder.hidden_cached(self._ids[:size], positions, self._cache)


def batch_sizes(most: int) -> list[int]:
    """Return the batch sizes to record, so that few rows are unused: 1, 2, 4, 8, 16, then steps of 16."""
    sizes = [1, 2, 4, 8, *range(16, most, 16)]
    return [*(size for size in sizes if size < most), most]


def rows_of(
    ids: Sequence[int],
    tables: Sequence[Sequence[int]],
    starts: Sequence[int],
    size: int,
    padding: int,
) -> Tensor:
    """Return (size, 2 + P): each row's token, how many tokens are before it, and its pages; the page `padding` fills up."""
    widest = max(map(len, tables))
    rows = [
        [token, start, *pages, *[padding] * (widest - len(pages))]
        for token, start, pages in zip(ids, starts, tables, strict=True)
    ]
    rows += [[0, 0, *[padding] * widest]] * (size - len(rows))
    return torch.tensor(rows)
