"""The runner on a CUDA GPU: decode steps are recorded graphs.

Where no caller must process a token before the next is sampled, one call samples several: the GPU goes from step to step
without the host, which schedules, stops and notifies once for all of them. A call ends early for new requests and for
changes of the weights. Prompt chunks hold decoding sequences up for a measured time at most (`PrefillBudget`).
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from hud import settings
from hud.engine.cuda.decode_graphs import DecodeGraphs
from hud.engine.cuda.drawing import AHEAD
from hud.engine.cuda.graph_cache import GraphCache
from hud.engine.cuda.prefill.budget import PrefillBudget, device_clock
from hud.engine.cuda.prefill.passes import Prefill
from hud.engine.cuda.recording_progress import show_recording
from hud.engine.decoder import Decoder
from hud.engine.sample.ahead import is_watched, reserve_ahead
from hud.engine.sample.kv_cache import KVCache
from hud.engine.sample.request import Request
from hud.engine.sample.runner import Runner, Sampled
from hud.engine.sample.scheduler import Chunk, Scheduler

if TYPE_CHECKING:
    from hud.engine.pretrained import AnyDecoder
    from hud.engine.sample.adapter_bank import AdapterBank

AHEAD_SECONDS = 0.1
"""Most seconds between two looks of the host at the sampled tokens."""


class CudaRunner(Runner):
    """Replays a recorded graph for each decode step; prompt chunks are packed into one pass."""

    cache_type: ClassVar[type[KVCache]] = GraphCache
    packs: ClassVar[bool] = True
    _count = 0
    """Tokens that the next `decode` may sample of each sequence; 0: through logits."""
    _arrived = 0
    """Waiting requests when the present batch was reserved."""
    _pace = 0.0
    """Seconds of a step in the last `decode`."""

    def __init__(
        self, decoder: AnyDecoder, cache: KVCache, most: int, bank: AdapterBank | None = None
    ) -> None:
        super().__init__(decoder, cache, most, bank)
        seconds = settings.load().prefill_ms / 1000
        self._budget = PrefillBudget(seconds, device_clock(decoder.device))

    def use(self, decoder: AnyDecoder) -> None:
        super().use(decoder)
        assert isinstance(decoder, Decoder)
        assert isinstance(self.cache, GraphCache)
        self.graphs = DecodeGraphs(decoder, self.cache, self.most)
        self._prefill = Prefill(decoder, self.cache)

    def refresh(self) -> None:
        self.graphs.check()

    def warm_up(self) -> bool:
        if not self.graphs.complete:
            self._prefill.warm_up()
            self.graphs.record(lambda: not self.interrupted(), show_recording)
        return self.graphs.complete

    def prompt_tokens(self, usual: int) -> int:
        return self._budget.tokens()

    def step(self, chunks: Sequence[Chunk]) -> Sampled:
        if all(one.count == 1 for one in chunks):
            return super().step(chunks)
        with self._budget.measured(sum(one.count for one in chunks)):
            return super().step(chunks)

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
        requests = [one.request for one in batch]
        if any(one.constraint is not None or one.top for one in requests):
            return
        self._count = 1
        # A prompt that is being computed, or a preempted sequence, continues after this call.
        if len(batch) < len(scheduler.active) or any(map(is_watched, requests)):
            return
        most = AHEAD if self._pace == 0.0 else min(AHEAD, max(1, int(AHEAD_SECONDS / self._pace)))
        self._count = reserve_ahead(requests, scheduler.prefix_cache, most)

    def decode(self, batch: Sequence[Chunk]) -> Sampled:
        if not self._count:
            return self.step(batch)
        began = perf_counter()
        requests = [one.request for one in batch]
        steps, logprobs = self.graphs.sample(
            [request.next_ids(1)[0] for request in requests],
            [request.place.pages for request in requests],
            [len(request.place.tokens) for request in requests],
            [request.params for request in requests],
            [request.uniforms.coming(self._count) for request in requests],
            self._proceed,
        )
        self._pace = (perf_counter() - began) / len(steps)
        rows = zip(requests, zip(*steps, strict=True), zip(*logprobs, strict=True), strict=True)
        return [_taken(request, list(ids), list(chances)) for request, ids, chances in rows]

    def _proceed(self) -> bool:
        """Return whether another step may be launched before the sampler's thread is back."""
        return not self.interrupted() and len(self._scheduler.waiting) <= self._arrived


def _taken(
    request: Request, ids: list[int], logprobs: list[float]
) -> tuple[Request, list[int], list[float]]:
    """Return a request's tokens up to its end, and record what the cache holds of them."""
    count = min(len(ids), request.most - len(request.token_ids))
    stops = (place + 1 for place in range(count) if ids[place] in request.stop_ids)
    count = next(stops, count)
    request.uniforms.skip(count)
    request.place.tokens += [*request.next_ids(1), *ids[: count - 1]]
    return request, ids[:count], logprobs[:count]
