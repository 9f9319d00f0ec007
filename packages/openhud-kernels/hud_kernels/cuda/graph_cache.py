"""The key-value cache of a CUDA GPU: attention reads its page tables on the device instead of gathering pages."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hud.engine.sample.kv_cache import KVCache
from hud_kernels.cuda.prefill.packing import PackedChunks


class GraphCache(KVCache):
    """A cache whose page tables are read on the device, by decode steps and by prompt chunks."""

    _aimed: tuple[Tensor, Tensor] | PackedChunks | None = None
    """Page tables and lengths of a decode step, or prompt chunks; None: the pages are gathered."""

    def aim(
        self,
        tables: Sequence[Sequence[int]],
        starts: Sequence[int],
        ends: Sequence[int],
        width: int,
    ) -> Tensor:
        self._aimed = None
        return super().aim(tables, starts, ends, width)

    def aim_at_tables(self, tables: Tensor, starts: Tensor) -> Tensor:
        """Prepare for one new token in each row; return their positions (B,).

        `tables` (B, P) int64 holds each row's pages, `starts` (B,) int64 its cached tokens. No value of either is read on the
        host, so that a CUDA graph can record it.
        """
        size = self.size.page_tokens
        self._write_to(tables.gather(1, starts[:, None] // size), starts[:, None] % size)
        self._aimed = tables, starts + 1
        return starts

    def aim_at_chunks(self, packed: PackedChunks) -> Tensor:
        """Prepare for the new tokens of packed prompt chunks; return their positions (T,)."""
        size, positions = self.size.page_tokens, packed.positions
        pages = packed.table[packed.rows, positions // size]
        self._write_to(pages[:, None], positions[:, None] % size)
        self._aimed = packed
        return positions

    @property
    def places(self) -> Tensor:
        """(B * kv_heads,) int64: where the next `write` stores each key and value, as rows of a layer's (..., D)."""
        return self._places

    def attend(self, layer: int, q: Tensor) -> Tensor:
        aimed, keys, values = self._aimed, self.keys[layer], self.values[layer]
        if aimed is None:
            return super().attend(layer, q)
        if isinstance(aimed, PackedChunks):
            from hud_kernels.cuda.prefill.attention import prefill_attention  # Needs triton.

            return prefill_attention(q, keys, values, aimed.table, aimed.tiles).flatten(1)
        from hud_kernels.cuda.paged_attention import paged_attention

        return paged_attention(q, keys, values, *aimed).flatten(1)
