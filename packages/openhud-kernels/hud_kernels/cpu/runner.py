"""The runner of small models on a CPU: passes over a copy of the weights that is laid out for compiled code.

Where no caller needs to see a token before the next is sampled, one call samples several.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from time import perf_counter

from torch import Tensor

from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.sample.ahead import is_watched, reserve_ahead
from hud.engine.sample.plain_runner import PlainRunner
from hud.engine.sample.request import Request
from hud.engine.sample.runner import Sampled
from hud.engine.sample.scheduler import Chunk, Scheduler
from hud_kernels.cpu.fused_decoder import FusedDecoder

AT_ONCE = 8
"""Maximum tokens of a sequence between checks for new requests, new weights and abandoned requests."""
AT_ONCE_SECONDS = 0.01
"""Maximum time between these checks, in seconds."""


class CpuRunner(PlainRunner):
    """Computes with a `FusedDecoder`."""

    _fused: FusedDecoder | None = None
    _count = 0
    """Tokens that the next `decode` may sample of each sequence; 0: through logits."""
    _until_end = False
    """True: the next `decode` stops when the first sequence ends."""
    _pace = AT_ONCE_SECONDS, 1
    """Seconds for one token of each sequence in the last `decode`, and its sequences."""

    @property
    def fused(self) -> FusedDecoder:
        """The copy of the weights; made by the first `refresh`."""
        assert self._fused is not None
        return self._fused

    def refresh(self) -> None:
        assert isinstance(self.decoder, ReferenceDecoder)
        if self._fused is None:
            self._fused = FusedDecoder(self.decoder)
        else:
            self._fused.refresh(self.decoder)

    def last_hidden(
        self, ids: Sequence[list[int]], tables: Sequence[list[int]], starts: Sequence[int]
    ) -> Tensor:
        hidden = self.fused.run(ids, tables, starts, self.cache)
        if len(hidden) == len(ids):
            return hidden
        return hidden[[end - 1 for end in accumulate(map(len, ids))]]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.fused.logits(hidden)

    def reserve(self, batch: Sequence[Chunk], scheduler: Scheduler) -> None:
        """Reserve cache positions for several tokens of each sequence, where they may be sampled in one call.

        No active sequence loses its pages for that; idle ones may.
        """
        self._until_end = bool(scheduler.waiting)
        self._count = 0
        requests = [chunk.request for chunk in batch]
        stops = requests[0].stop_ids
        if any(needs_logits(request) or request.stop_ids != stops for request in requests):
            return
        self._count = 1
        # A prompt that is being computed, or a preempted sequence, continues after this call.
        if len(batch) < len(scheduler.active) or any(map(is_watched, requests)):
            return
        seconds, before = self._pace
        most = min(AT_ONCE, int(AT_ONCE_SECONDS / (seconds * max(1.0, len(batch) / before))))
        self._count = reserve_ahead(requests, scheduler.prefix_cache, most)

    def decode(self, batch: Sequence[Chunk]) -> Sampled:
        began = perf_counter()
        sampled = (
            self._sample_ahead([chunk.request for chunk in batch])
            if self._count
            else self.step(batch)
        )
        count = max(len(ids) for _, ids, _ in sampled)
        self._pace = (perf_counter() - began) / count, len(batch)
        return sampled

    def _sample_ahead(self, batch: list[Request]) -> Sampled:
        """Sample up to `_count` tokens for each request in one call."""
        lasts = [request.last_id for request in batch]
        sampled, logprobs, counts = self.fused.draw_on(
            lasts,
            [request.place.pages for request in batch],
            [len(request.place.tokens) for request in batch],
            self.cache,
            [request.params.effective_temperature for request in batch],
            [request.uniforms.coming(self._count) for request in batch],
            [request.most - len(request.token_ids) for request in batch],
            batch[0].stop_ids,
            until_end=self._until_end,
        )
        results: Sampled = []
        for request, last, ids, chances, count in zip(
            batch, lasts, sampled.tolist(), logprobs.tolist(), counts.tolist(), strict=True
        ):
            request.uniforms.skip(count)
            request.place.tokens += [last, *ids[: count - 1]]
            results.append((request, ids[:count], chances[:count]))
        return results


def needs_logits(request: Request) -> bool:
    """Return whether a token of a request is sampled by torch: from a cut or masked distribution, or with its likeliest ones."""
    return request.constraint is not None or request.top > 0 or request.params.truncates
