"""Decode steps recorded as CUDA graphs: one launch for each step instead of one for each of its operations.

Recorded for a few batch sizes; a batch takes the next larger one. How long sequences are does not matter, because
attention reads their page tables (`paged_attention`). Weights that change in place need nothing; weights that are
replaced, or added to, are recorded anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from hud.engine.cuda.drawing import Drawing, to_device
from hud.engine.decoder import Decoder
from hud.engine.sample.kv_cache import KVCache
from hud.trace import SamplingParams


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

    @property
    def places(self) -> Tensor:
        """(B * kv_heads,) int64: where the next `write` stores each key and value, as rows of a layer's (..., D)."""
        return self._places

    def attend(self, layer: int, q: Tensor) -> Tensor:
        if self._step is None:
            return super().attend(layer, q)
        from hud.engine.cuda.paged_attention import paged_attention  # Needs triton.

        return paged_attention(q, self.keys[layer], self.values[layer], *self._step).flatten(1)


class DecodeGraphs:
    """The recorded steps of one decoder over one cache of small pages, for at most `most` sequences.

    There are two kinds of steps: those that return hidden states, and those that sample. The latter leave the token and
    the length on the device for the next step, so that several run without the host.
    """

    def __init__(self, decoder: Decoder, cache: GraphCache, most: int) -> None:
        self.decoder = decoder
        self._cache = cache
        self.sizes = batch_sizes(most)
        device, size = cache.keys.device, cache.size
        # One more: steps ahead of the last token of a sequence write to the padding page.
        columns = -(-size.max_context // size.page_tokens) + 1
        # A graph reads and writes the memory of its recording. Unused rows have the padding page.
        self._ids = torch.zeros(most, dtype=torch.long, device=device)
        self._starts = torch.zeros(most, dtype=torch.long, device=device)
        self._tables = torch.full((most, columns), size.pages, device=device)
        self._drawing = Drawing(most, device)
        self._recorded: dict[tuple[int, str], tuple[AnyGraph, Tensor]] = {}
        self._weights = self._places()

    def run(
        self, ids: Sequence[int], tables: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Tensor:
        """Compute one token for each sequence, after `starts` tokens in the pages of `tables`; return (B, H).

        What is returned is overwritten by the next run.
        """
        size = self._fill(ids, tables, starts)
        graph, hidden = self._graph(size, "hidden")
        graph.replay()
        return hidden[: len(ids)]

    def sample(
        self,
        ids: Sequence[int],
        tables: Sequence[Sequence[int]],
        starts: Sequence[int],
        params: Sequence[SamplingParams],
        uniforms: Sequence[Sequence[float]],
        proceed: Callable[[], bool],
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Sample tokens for each sequence, one for each of its `uniforms`; return the ids and logprobs of each step.

        The pages of `tables` have room for them; tokens past a sequence's pages are computed with the padding page, for
        the caller to discard. Step n + 1 is launched before the host waits for step n; then `proceed` is called, and the
        steps end with the launched one where it returns False.
        """
        size = self._fill(ids, tables, starts)
        self._drawing.fill(params, uniforms)
        cut = any(one.truncates for one in params)
        graph, _ = self._graph(size, "cut" if cut else "sampled")
        done, last = 0, None
        while done < len(uniforms[0]):
            graph.replay()
            done += 1
            event = self._event()
            if last is not None:
                last.synchronize()
            last = event
            if not proceed():
                break
        return self._drawing.read(done, len(ids))

    def record(self) -> None:
        """Record sampling steps of every batch size, the largest first: the others then fit into its memory."""
        for size in reversed(self.sizes):
            self._graph(size, "sampled")

    def check(self) -> None:
        """Discard the recordings if the weights' memory addresses have changed."""
        weights = self._places()
        if weights != self._weights:
            self._weights = weights
            self._recorded.clear()

    def _places(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self.decoder.parameters()]

    def _fill(
        self, ids: Sequence[int], tables: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> int:
        """Copy a batch to the graphs' input memory, in one transfer to the device; return the size that is recorded for it."""
        size = self.sizes[bisect_left(self.sizes, len(ids))]
        rows = rows_of(ids, tables, starts, size, self._cache.size.pages)
        columns = min(rows.shape[1] - 2, self._tables.shape[1])
        staged = to_device(rows, self._ids.device)
        self._ids[:size].copy_(staged[:, 0])
        self._starts[:size].copy_(staged[:, 1])
        self._tables[:size, :columns].copy_(staged[:, 2 : 2 + columns])
        return size

    def _graph(self, size: int, kind: str) -> tuple[AnyGraph, Tensor]:
        if (size, kind) not in self._recorded:
            self._recorded[size, kind] = self._record(partial(self._step, size, kind))
        return self._recorded[size, kind]

    def _record(self, step: Callable[[], Tensor]) -> tuple[AnyGraph, Tensor]:
        """Return a graph of a step, and the tensor in which it leaves its result."""
        if self._ids.device.type != "cuda":
            eager = EagerGraph(step, self.decoder.dtype)
            return eager, eager.result
        # A recording runs nothing, but its warm-up does: with rows of the padding page alone.
        saved = [one.clone() for one in self._inputs()]
        self._starts.zero_()
        self._tables.fill_(self._cache.size.pages)
        self._drawing.step.zero_()
        # Warm-up: kernels are compiled and workspaces allocated before recording.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # One pool for all: no two of them run at the same time.
        first = next(iter(self._recorded.values()), None)
        pool = first[0].pool() if first is not None else None
        # Other threads of this process may train meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = step()
        for one, value in zip(self._inputs(), saved, strict=True):
            one.copy_(value)
        return graph, result

    def _inputs(self) -> list[Tensor]:
        return [self._ids, self._starts, self._tables, self._drawing.step]

    def _event(self) -> torch.cuda.Event | None:
        """Return an event that is over when what was launched so far is."""
        if self._ids.device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _step(self, size: int, kind: str) -> Tensor:
        positions = self._cache.aim_at_tables(self._tables[:size], self._starts[:size])
        hidden = self._hidden(self._ids[:size], positions)
        if kind == "hidden":
            return hidden
        ids = self._drawing.draw(self.decoder.logits(hidden), cut=kind == "cut")
        self._ids[:size].copy_(ids)
        self._starts[:size].add_(1)
        return ids

    def _hidden(self, ids: Tensor, positions: Tensor) -> Tensor:
        if ids.device.type != "cuda":
            return self.decoder.hidden_cached(ids, positions, self._cache)
        from hud.engine.cuda.decode_layers import hidden_decoded  # Needs triton.

        return hidden_decoded(self.decoder, ids, positions, self._cache)


class EagerGraph:
    """A step that is computed again at each replay: without a GPU there is nothing to record it."""

    def __init__(self, step: Callable[[], Tensor], dtype: torch.dtype) -> None:
        self._step = step
        self.result = torch.empty(0, dtype=dtype)

    def replay(self) -> None:
        """Compute the step."""
        found = self._step()
        if self.result.shape != found.shape:
            self.result.resize_(found.shape)
        self.result.copy_(found)

    def pool(self) -> None:
        """Return no memory pool."""


AnyGraph = torch.cuda.CUDAGraph | EagerGraph


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
    """Return (size, 2 + P): each row's token, how many tokens are before it, and its pages; the page `padding` fills up.

    There is a column more than the longest table has, for steps ahead.
    """
    widest = max(map(len, tables)) + 1
    rows = [
        [token, start, *pages, *[padding] * (widest - len(pages))]
        for token, start, pages in zip(ids, starts, tables, strict=True)
    ]
    rows += [[0, 0, *[padding] * widest]] * (size - len(rows))
    return torch.tensor(rows)
