"""Prompt chunks on a CUDA GPU: all of a pass packed without padding, with one attention call a layer over the pages."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hud.engine.models.reference_decoder import ReferenceDecoder
from hud_kernels.cuda.decode_step import hidden_states
from hud_kernels.cuda.graph_cache import GraphCache
from hud_kernels.cuda.prefill.packing import pack


class Prefill:
    """Computes prompt chunks with a decoder into a cache."""

    def __init__(self, decoder: ReferenceDecoder, cache: GraphCache) -> None:
        self.decoder = decoder
        self._cache = cache

    def run(
        self, ids: Sequence[list[int]], tables: Sequence[list[int]], starts: Sequence[int]
    ) -> Tensor:
        """Compute the new tokens `ids` of each row, after `starts` tokens in the pages of `tables`.

        Returns the hidden state of each row's last token (B, H).
        """
        size = self._cache.size
        packed = pack(
            ids,
            tables,
            starts,
            page_tokens=size.page_tokens,
            groups=self._cache.groups,
            device=self.decoder.device,
        )
        positions = self._cache.aim_at_chunks(packed)
        return hidden_states(self.decoder, packed.ids, positions, self._cache)[packed.last]

    def warm_up(self) -> None:
        """Compile the kernels, by a pass that writes to the padding page alone."""
        padding = self._cache.size.pages
        self.run([[0] * 2], [[padding]], [0])
