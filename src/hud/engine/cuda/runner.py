"""The runner on a CUDA GPU: decode steps are recorded graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from hud.engine.cuda.decode_graphs import DecodeGraphs, GraphCache
from hud.engine.decoder import Decoder
from hud.engine.sample.kv_cache import KVCache
from hud.engine.sample.runner import Runner

if TYPE_CHECKING:
    from hud.engine.pretrained import AnyDecoder


class CudaRunner(Runner):
    """Replays a recorded graph for each decode step; prompts go through the decoder as it is."""

    cache_type: ClassVar[type[KVCache]] = GraphCache

    def use(self, decoder: AnyDecoder) -> None:
        super().use(decoder)
        assert isinstance(decoder, Decoder)
        assert isinstance(self.cache, GraphCache)
        self._graphs = DecodeGraphs(decoder, self.cache, self.most)

    def refresh(self) -> None:
        self._graphs.check()

    def last_hidden(
        self, ids: Sequence[list[int]], tables: Sequence[list[int]], starts: Sequence[int]
    ) -> Tensor:
        if max(map(len, ids)) > 1:
            return super().last_hidden(ids, tables, starts)
        return self._graphs.run([row[0] for row in ids], tables, starts)
