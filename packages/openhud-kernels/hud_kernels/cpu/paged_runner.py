"""The runner of large models on a CPU: torch's products, and attention that reads the cache's pages in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from hud.engine.decoder import Decoder
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.sample.kv_cache import KVCache
from hud.engine.sample.plain_runner import PlainRunner
from hud.engine.sample.request import Request
from hud.engine.sample.runner import Sampled
from hud.engine.sample.token_sampling import NOT_FINITE
from hud.errors import InfrastructureFault
from hud_kernels.cpu.fused_layers import ELEMENTS, hidden_fused
from hud_kernels.cpu.layer_kernels import kernels_for
from hud_kernels.cpu.matmul_kernels import COLUMNS
from hud_kernels.cpu.packed_products import DecoderProducts
from hud_kernels.cpu.paged_cache import PagedCache
from hud_kernels.cpu.row_numbers import KINDS
from hud_kernels.cpu.runner import needs_logits
from hud_kernels.cpu.team import run

PASS_TOKENS = 1024
"""Most new tokens, padding included, that go through all layers together: what is between two products stays in caches."""


class PagedRunner(PlainRunner):
    """Computes with a decoder over a `PagedCache`."""

    cache_type: ClassVar[type[KVCache]] = PagedCache

    def last_hidden(
        self, ids: Sequence[list[int]], tables: Sequence[list[int]], starts: Sequence[int]
    ) -> Tensor:
        # A bank's masks are aimed at the rows of a whole pass.
        most = max(1, PASS_TOKENS // max(map(len, ids)))
        if self.bank is not None or len(ids) <= most:
            return super().last_hidden(ids, tables, starts)
        parts = (slice(first, first + most) for first in range(0, len(ids), most))
        return torch.cat(
            [
                super(PagedRunner, self).last_hidden(ids[part], tables[part], starts[part])
                for part in parts
            ]
        )

    def refresh(self) -> None:
        assert isinstance(self.decoder, ReferenceDecoder)
        self._products = DecoderProducts(self.decoder)

    def hidden(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        assert isinstance(self.decoder, ReferenceDecoder)
        assert isinstance(self.cache, PagedCache)
        return hidden_fused(self.decoder, self._products, input_ids, positions, self.cache)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._products.logits(hidden)

    def sample(self, batch: Sequence[Request], hidden: Tensor) -> Sampled:
        """Sample a token of each row, in one kernel where none needs logits. Raises `InfrastructureFault` if they are not finite."""
        if any(map(needs_logits, batch)):
            return super().sample(batch, hidden)
        logits = self.logits(hidden)
        count, size = logits.shape
        temperatures = torch.tensor([request.params.effective_temperature for request in batch])
        uniforms = torch.tensor([request.uniforms.next() for request in batch], dtype=torch.float64)
        ids, logprobs = torch.empty(count, dtype=torch.int64), torch.empty_like(uniforms)
        arrays = logits, temperatures, uniforms, ids, logprobs
        run(kernels_for(logits.dtype).draw, logits.numel() // ELEMENTS, *arrays, count, size)
        if not logprobs.isfinite().all():
            raise InfrastructureFault(NOT_FINITE)
        return [
            (request, [token], [logprob])
            for request, token, logprob in zip(batch, ids.tolist(), logprobs.tolist(), strict=True)
        ]


def can_read_pages(decoder: Decoder) -> bool:
    """Return whether the kernels attend for a decoder: of a dtype of `KINDS`, whose heads are whole vectors."""
    if not isinstance(decoder, ReferenceDecoder) or decoder.device.type != "cpu":
        return False
    return decoder.dtype in KINDS and decoder.config.head_dim % COLUMNS == 0
