"""The decode step on a GPU: layers, logits and sampling of one token for each sequence, recorded as a CUDA graph and launched as one.

Recorded for a few batch sizes; a batch takes the next larger one. How long sequences are does not matter, because
attention reads their page tables (`paged_attention`). Weights that change in place need nothing; weights that are
replaced, or added to, are recorded anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.sample.adapter_bank import Adapter, AdapterBank
from hud.trace import SamplingParams
from hud_kernels.cuda.drawing import Drawing, to_device
from hud_kernels.cuda.graph_cache import GraphCache

KINDS = ("sampled", "cut", "hidden")
"""Steps that sample, without and with top-k and top-p, and steps that return hidden states."""


class DecodeGraphs:
    """The recorded steps of one decoder over one cache of small pages, for at most `most` sequences.

    Steps that sample leave the token and the length on the device for the next step, so that several run without the
    host. Nothing is recorded but by `record`: it would hold up every sequence.
    """

    recordings = 0
    """Steps that were recorded so far."""

    def __init__(
        self,
        decoder: ReferenceDecoder,
        cache: GraphCache,
        most: int,
        bank: AdapterBank | None = None,
    ) -> None:
        """`bank`: the adapters of rows, where `decoder` is a bank's; see `aim_adapters`."""
        self.decoder = decoder
        self._cache = cache
        self._bank = bank
        self._mask: Tensor | None = None
        """(most, C): which columns of the bank count for which row, in the memory of the recordings."""
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
        self._weights: list[int] = []
        self.check()

    def aim_adapters(self, rows: Sequence[Adapter | None]) -> None:
        """Set the adapter of each row of the next steps, where there is a bank."""
        if self._bank is None or self._mask is None:
            return
        mask = self._bank.mask_of(rows)
        row_mask = self._mask[: len(rows)]
        if mask is None:
            row_mask.zero_()
        else:
            row_mask.copy_(mask)

    def run(
        self, ids: Sequence[int], tables: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Tensor:
        """Compute one token for each sequence, after `starts` tokens in the pages of `tables`; return (B, H).

        What is returned is overwritten by the next run.
        """
        size = self._fill(ids, tables, starts)
        return self._launch(size, "hidden")[: len(ids)]

    def sample(
        self,
        ids: Sequence[int],
        tables: Sequence[Sequence[int]],
        starts: Sequence[int],
        params: Sequence[SamplingParams],
        uniforms: Sequence[NDArray[np.float64]],
        proceed: Callable[[], bool],
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Sample tokens for each sequence, one for each of its `uniforms`; yield the ids and logprobs of each step.

        The pages of `tables` have room for them; tokens past a sequence's pages are computed with the padding page, for
        the caller to discard. Step n + 1 is launched before step n is yielded, so that the device works meanwhile; then
        `proceed` is called, and the steps end with the launched one where it returns False.
        """
        size = self._fill(ids, tables, starts)
        kind = "cut" if self._drawing.fill(params, uniforms) else "sampled"
        number, before = 0, None
        for number in range(len(uniforms[0])):
            self._launch(size, kind)
            event = self._drawing.fetch(number)
            if number:
                yield self._known(number - 1, len(ids), before)
            before = event
            if not proceed():
                break
        yield self._known(number, len(ids), before)

    def _known(
        self, step: int, count: int, event: torch.cuda.Event | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the ids and logprobs of a step, once its event is over."""
        if event is not None:
            event.synchronize()
        return self._drawing.read(step, count)

    @property
    def complete(self) -> bool:
        """True: every step is recorded; others are computed without a graph, slower."""
        return len(self._recorded) == len(self.sizes) * len(KINDS)

    def record(self, proceed: Callable[[], bool], progress: Callable[[int, int], None]) -> None:
        """Record the steps that are not recorded yet, the largest first: the others then fit into its memory.

        `progress` is called with the number of recorded steps and of all. Ends early where `proceed` returns False.
        """
        steps = [(size, kind) for size in reversed(self.sizes) for kind in KINDS]
        for done, (size, kind) in enumerate(steps, 1):
            if (size, kind) in self._recorded:
                continue
            if not proceed():
                return
            self._recorded[size, kind] = self._record(partial(self._step, size, kind))
            self.recordings += 1
            progress(done, len(steps))

    def check(self) -> None:
        """Discard the recordings if the weights' memory addresses have changed."""
        weights = self._places()
        if weights != self._weights:
            self._weights = weights
            self._recorded.clear()
            if self._bank is not None:
                columns = self._bank.capacity
                self._mask = torch.zeros(len(self._ids), columns, device=self._ids.device)

    def _places(self) -> list[int]:
        adapters = self._bank.tensors if self._bank is not None else []
        return [tensor.data_ptr() for tensor in (*self.decoder.parameters(), *adapters)]

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

    def _launch(self, size: int, kind: str) -> Tensor:
        """Launch a step and return its result. One that is not recorded is computed, for a recording would take longer."""
        if (size, kind) not in self._recorded:
            return self._step(size, kind)
        graph, result = self._recorded[size, kind]
        graph.replay()
        return result

    def _record(self, step: Callable[[], Tensor]) -> tuple[AnyGraph, Tensor]:
        """Return a graph of a step, and the tensor in which it leaves its result."""
        if self._ids.device.type != "cuda":
            eager = EagerGraph(step, self.decoder.dtype)
            return eager, eager.result
        # A recording runs nothing, but its warm-up does: with rows of the padding page alone.
        saved = [tensor.clone() for tensor in self._inputs()]
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
        for tensor, value in zip(self._inputs(), saved, strict=True):
            tensor.copy_(value)
        return graph, result

    def _inputs(self) -> list[Tensor]:
        return [self._ids, self._starts, self._tables, self._drawing.step]

    def _step(self, size: int, kind: str) -> Tensor:
        positions = self._cache.aim_at_tables(self._tables[:size], self._starts[:size])
        if self._bank is not None and self._mask is not None:
            self._bank.mask = self._mask[:size]
        hidden = hidden_states(self.decoder, self._ids[:size], positions, self._cache)
        if kind == "hidden":
            return hidden
        ids = self._drawing.draw(self.decoder.logits(hidden), cut=kind == "cut")
        self._ids[:size].copy_(ids)
        self._starts[:size].add_(1)
        return ids


def hidden_states(
    decoder: ReferenceDecoder, input_ids: Tensor, positions: Tensor, cache: GraphCache
) -> Tensor:
    """Return what `decoder.hidden_cached` returns, by fused layers on a GPU; `cache` is aimed at tables or chunks."""
    if input_ids.device.type != "cuda":
        return decoder.hidden_cached(input_ids, positions, cache)
    from hud_kernels.cuda.decode_layers import hidden_fused  # Needs triton.

    return hidden_fused(decoder, input_ids, positions, cache)


class EagerGraph:
    """A step that is computed again at each replay: without a GPU there is nothing to record it."""

    def __init__(self, step: Callable[[], Tensor], dtype: torch.dtype) -> None:
        self._step = step
        self.result = torch.empty(0, dtype=dtype)

    def replay(self) -> None:
        """Compute the step."""
        result = self._step()
        if self.result.shape != result.shape:
            self.result.resize_(result.shape)
        self.result.copy_(result)

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
    lengths = np.fromiter(map(len, tables), dtype=np.int64, count=len(tables))
    rows = np.full((size, 3 + lengths.max()), padding)
    rows[:, :2] = 0
    rows[: len(ids), 0], rows[: len(ids), 1] = ids, starts
    filled = np.arange(rows.shape[1] - 2) < lengths[:, None]
    rows[: len(ids), 2:][filled] = np.fromiter(chain.from_iterable(tables), dtype=np.int64)
    return torch.from_numpy(rows)
