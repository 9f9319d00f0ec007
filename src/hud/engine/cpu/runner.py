"""The runner of small models on a CPU: passes over a copy of the weights that is laid out for compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor

from hud.engine.cpu.fused_decoder import FusedDecoder
from hud.engine.cpu.kernels import draw_rows
from hud.engine.decoder import Decoder
from hud.engine.sample.request import Request
from hud.engine.sample.runner import Runner, cached, new_tokens, whole_prompts

if TYPE_CHECKING:
    from hud.engine.sample.scheduler import Stretch


class CpuRunner(Runner):
    """Samples with compiled code what needs no look at the logits."""

    def sample(self, logits: Tensor, batch: Sequence[Request]) -> tuple[list[int], list[float]]:
        """See `Runner.sample`."""
        if any(request.params.truncates for request in batch):
            return super().sample(logits, batch)
        ids, logprobs = np.empty(len(batch), np.int64), np.empty(len(batch), np.float64)
        temperatures = np.array(
            [request.params.effective_temperature for request in batch], np.float32
        )
        numbers = np.array([request.uniforms.next() for request in batch])
        rows = logits.float().contiguous().numpy()
        draw_rows(rows, logits.shape[1], temperatures, numbers, ids, logprobs)
        return ids.tolist(), logprobs.tolist()


class FusedRunner(CpuRunner):
    """Computes with a `FusedDecoder`, several tokens in one call where nobody has to see one before the next."""

    page_tables: ClassVar[bool] = True
    several_tokens: ClassVar[bool] = True
    _fused: FusedDecoder | None = None

    @property
    def fused(self) -> FusedDecoder:
        """The copy that is computed with, from the first `refresh` on."""
        assert self._fused is not None
        return self._fused

    def refresh(self) -> None:
        """See `Runner.refresh`."""
        assert isinstance(self.decoder, Decoder)
        if self._fused is None:
            self._fused = FusedDecoder(self.decoder)
        else:
            self._fused.refresh(self.decoder)

    def prefill(self, batch: Sequence[Stretch]) -> tuple[list[Request], Tensor]:
        """See `Runner.prefill`."""
        batch = sorted(batch, key=lambda one: self._rank(one.request.place, one.count))
        new, starts = new_tokens(batch)
        tables = [one.request.place.pages for one in batch]
        hidden = self.fused.run(new, tables, starts, self.cache)
        lasts = [end - 1 for end in accumulate(map(len, new))]
        return whole_prompts(batch, new, lasts, hidden)

    def decode(self, batch: Sequence[Request]) -> tuple[list[Request], Tensor]:
        """See `Runner.decode`."""
        ordered = sorted(batch, key=lambda request: self._rank(request.place, 1))
        starts = [len(request.place.tokens) for request in ordered]
        tables = [request.place.pages for request in ordered]
        ids = [[request.last] for request in ordered]
        return ordered, cached(ordered, self.fused.run(ids, tables, starts, self.cache))

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Runner.logits`."""
        return self.fused.logits(hidden)

    def sample_ahead(
        self, batch: Sequence[Request], count: int, *, until_end: bool
    ) -> list[tuple[list[int], list[float]]]:
        """See `Runner.sample_ahead`."""
        ids = [request.last for request in batch]
        drawn, logprobs, counts = self.fused.draw_on(
            ids,
            [request.place.pages for request in batch],
            [len(request.place.tokens) for request in batch],
            self.cache,
            [request.params.effective_temperature for request in batch],
            [request.uniforms.coming(count) for request in batch],
            [request.most - len(request.token_ids) for request in batch],
            batch[0].stop_ids,
            until_end=until_end,
        )
        found = []
        for request, first, tokens, chances, number in zip(
            batch, ids, drawn.tolist(), logprobs.tolist(), counts.tolist(), strict=True
        ):
            request.uniforms.skip(number)
            request.place.tokens += [first, *tokens[: number - 1]]
            found.append((tokens[:number], chances[:number]))
        return found
