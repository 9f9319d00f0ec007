"""The runner on a CUDA GPU: decode steps are recorded graphs over small pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from hud.engine.cuda.decode_graphs import DecodeGraphs
from hud.engine.decoder import Decoder
from hud.engine.sample.kv_cache import KVCache
from hud.engine.sample.request import Request
from hud.engine.sample.runner import Runner, cached

if TYPE_CHECKING:
    from hud.engine.pretrained import AnyDecoder
    from hud.engine.sample.adapter_bank import AdapterBank


class CudaRunner(Runner):
    """Replays a recorded graph for each decode step; prompts go through the decoder as it is."""

    page_tables: ClassVar[bool] = True

    def __init__(
        self, decoder: AnyDecoder, cache: KVCache, most: int, bank: AdapterBank | None = None
    ) -> None:
        super().__init__(decoder, cache, most, bank)
        self.use(decoder)

    def use(self, decoder: AnyDecoder) -> None:
        """See `Runner.use`."""
        super().use(decoder)
        assert isinstance(decoder, Decoder)
        self._graphs = DecodeGraphs(decoder, self.cache, self.most)

    def refresh(self) -> None:
        """See `Runner.refresh`."""
        self._graphs.check()

    def decode(self, batch: Sequence[Request]) -> tuple[list[Request], Tensor]:
        """See `Runner.decode`."""
        ordered = sorted(batch, key=lambda request: self._rank(request.place, 1))
        starts = [len(request.place.tokens) for request in ordered]
        tables = [request.place.pages for request in ordered]
        hidden = self._graphs.run([request.last for request in ordered], tables, starts)
        return ordered, cached(ordered, hidden)
