"""The runner of large models on a CPU: torch's products, and attention that reads the cache's pages in place."""

from __future__ import annotations

from typing import ClassVar

from hud.engine.decoder import Decoder
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.sample.kv_cache import KVCache
from hud.engine.sample.plain_runner import PlainRunner
from hud_kernels.cpu.matmul_kernels import COLUMNS
from hud_kernels.cpu.paged_cache import DTYPES, PagedCache


class PagedRunner(PlainRunner):
    """Computes with a decoder over a `PagedCache`."""

    cache_type: ClassVar[type[KVCache]] = PagedCache


def can_read_pages(decoder: Decoder) -> bool:
    """Return whether the kernels attend for a decoder: one of `DTYPES` whose heads are whole vectors."""
    if not isinstance(decoder, ReferenceDecoder) or decoder.device.type != "cpu":
        return False
    return decoder.dtype in DTYPES and decoder.config.head_dim % COLUMNS == 0
