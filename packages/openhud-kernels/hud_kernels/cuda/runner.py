"""The runner on a CUDA GPU: decode steps are recorded graphs.

One call samples several tokens of each sequence. Step n + 1 is launched before the host learns the tokens of step n, so that
the device works while these are appended, checked for stops and told to streams. What a step computes of a sequence that has
ended is discarded: its random numbers are not consumed, and its pages are free only after the call. A call ends early for new
requests (`ARRIVALS_SHARE`), cancelled ones and changes of the weights; grammars and top logprobs need logits, one step at a time.
Prompt chunks hold decoding sequences up for a measured time at most (`PrefillBudget`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from hud import settings
from hud.engine.decoder import Decoder
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.sample.adapter_bank import Adapter, AdapterBank
from hud.engine.sample.ahead import reserve_ahead
from hud.engine.sample.kv_cache import KVCache
from hud.engine.sample.plain_runner import PlainRunner
from hud.engine.sample.runner import Sampled
from hud.engine.sample.scheduler import Chunk, Scheduler
from hud_kernels.cuda.decode_step import DecodeGraphs
from hud_kernels.cuda.drawing import AHEAD
from hud_kernels.cuda.graph_cache import GraphCache
from hud_kernels.cuda.prefill.budget import PrefillBudget, device_clock
from hud_kernels.cuda.prefill.passes import Prefill
from hud_kernels.cuda.recording_progress import show_recording
from hud_kernels.cuda.untaken_tokens import UntakenTokens

ARRIVALS_SHARE = 16
"""A call ends for one new request for each so many sequences: a return to the host is work for every sequence."""
HELD_STEPS = 4
"""Most steps for which fewer new requests are held up."""


class CudaRunner(PlainRunner):
    """Replays a recorded graph for each decode step; prompt chunks are packed into one pass."""

    cache_type: ClassVar[type[KVCache]] = GraphCache
    packs: ClassVar[bool] = True
    _count = 0
    """Tokens that the next `decode` may sample of each sequence; 0: through logits."""
    _arrived = 0
    """Waiting requests when the present batch was reserved."""
    _held = 0
    """Steps of the present call since a request arrived."""

    def __init__(
        self, decoder: Decoder, cache: KVCache, most: int, bank: AdapterBank | None = None
    ) -> None:
        super().__init__(decoder, cache, most, bank)
        seconds = settings.load().prefill_ms / 1000
        self._budget = PrefillBudget(seconds, device_clock(decoder.device))

    def use(self, decoder: Decoder) -> None:
        super().use(decoder)
        assert isinstance(decoder, ReferenceDecoder)
        assert isinstance(self.cache, GraphCache)
        self.graphs = DecodeGraphs(decoder, self.cache, self.most, self.bank)
        self._prefill = Prefill(decoder, self.cache)

    def refresh(self) -> None:
        self.graphs.check()

    def warm_up(self) -> bool:
        if not self.graphs.complete:
            if self.bank is not None:
                self.bank.aim([])
            self._prefill.warm_up()
            self.graphs.record(lambda: not self.interrupted(), show_recording)
        return self.graphs.complete

    def prompt_tokens(self, usual: int) -> int:
        return self._budget.tokens()

    def step(self, chunks: Sequence[Chunk]) -> Sampled:
        if all(chunk.count == 1 for chunk in chunks):
            return super().step(chunks)
        with self._budget.measured(sum(chunk.count for chunk in chunks)):
            return super().step(chunks)

    def aim_adapters(
        self, bank: AdapterBank, rows: Sequence[Adapter | None], ids: Sequence[list[int]]
    ) -> None:
        if max(map(len, ids)) > 1:
            bank.aim([adapter for adapter, row in zip(rows, ids, strict=True) for _ in row])
        else:
            self.graphs.aim_adapters(rows)

    def last_hidden(
        self, ids: Sequence[list[int]], tables: Sequence[list[int]], starts: Sequence[int]
    ) -> Tensor:
        if max(map(len, ids)) > 1:
            return self._prefill.run(ids, tables, starts)
        return self.graphs.run([row[0] for row in ids], tables, starts)

    def reserve(self, batch: Sequence[Chunk], scheduler: Scheduler) -> None:
        """Reserve cache positions for several tokens of each sequence, where they may be sampled in one call."""
        self._scheduler = scheduler
        self._arrived = len(scheduler.waiting)
        self._count = 0
        requests = [chunk.request for chunk in batch]
        if any(request.constraint is not None or request.top for request in requests):
            return
        self._count = 1
        # A prompt that is being computed, or a preempted sequence, continues after this call.
        if len(batch) < len(scheduler.active):
            return
        longest = max(request.most - len(request.token_ids) for request in requests)
        self._count = reserve_ahead(requests, scheduler.prefix_cache, min(AHEAD, longest))

    def decode(self, batch: Sequence[Chunk]) -> Sampled:
        if not self._count:
            return self.step(batch)
        self._batch = [chunk.request for chunk in batch]
        self.graphs.aim_adapters([request.adapter for request in self._batch])
        steps = self.graphs.sample(
            [request.last_id for request in self._batch],
            [request.place.pages for request in self._batch],
            [len(request.place.tokens) for request in self._batch],
            [request.params for request in self._batch],
            [request.uniforms.coming(self._count) for request in self._batch],
            self._proceed,
        )
        self._untaken = UntakenTokens(self._batch, self._count)
        self._held = 0
        for ids, logprobs in steps:
            if sampled := self._untaken.add(ids, logprobs):
                self.deliver(sampled)
                self._untaken.note_ends()
        return self._untaken.rest()

    def _proceed(self) -> bool:
        """Return whether another step may be launched before the sampler's thread is back."""
        if self._untaken.over or self.interrupted():
            return False
        arrived = len(self._scheduler.waiting) - self._arrived
        self._held += arrived > 0
        if arrived * ARRIVALS_SHARE >= len(self._batch) or self._held > HELD_STEPS:
            return False
        return not any(request.abandoned and request.outcome is None for request in self._batch)
