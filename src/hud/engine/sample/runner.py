"""The runner: forward passes of the sequences that the scheduler chose, over the key-value cache.

The scheduler decides, the runner computes. This one computes with the decoder as it is; `engine/cpu` and `engine/cuda` have
faster ones behind the same interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from hud.engine.sample.kv_cache import KVCache
from hud.engine.sample.request import Request
from hud.engine.sample.token_sampling import sample_tokens

if TYPE_CHECKING:
    from hud.engine.pretrained import AnyDecoder
    from hud.engine.sample.adapter_bank import AdapterBank
    from hud.engine.sample.scheduler import Stretch
    from hud.engine.sample.slots import Slot


class Runner:
    """Computes with a decoder, or with a bank of adapters over it."""

    page_tables: ClassVar[bool] = False
    """True: it needs a cache of small pages."""
    several_tokens: ClassVar[bool] = False
    """True: `sample_ahead` is there."""

    def __init__(
        self, decoder: AnyDecoder, cache: KVCache, most: int, bank: AdapterBank | None = None
    ) -> None:
        """`most`: the largest batch of `decode`."""
        self.decoder = decoder
        self.cache = cache
        self.most = most
        self.bank = bank

    def use(self, decoder: AnyDecoder) -> None:
        """Compute with another decoder of the same shape."""
        self.decoder = decoder

    def refresh(self) -> None:
        """Compute with the decoder's weights as they are now; called before the first pass and after each change."""

    def prefill(self, batch: Sequence[Stretch]) -> tuple[list[Request], Tensor]:
        """Compute the stretches; return the requests whose prompt is whole, and their last hidden states (B, H)."""
        batch = sorted(batch, key=lambda one: self._rank(one.request.place, one.count))
        width = max(one.count for one in batch)
        new, starts = new_tokens(batch)
        ends = [start + len(row) for start, row in zip(starts, new, strict=True)]
        tables = [one.request.place.pages for one in batch]
        positions = self.cache.aim(tables, starts, ends, width)
        if self.bank is not None:
            self.bank.aim([one.request.adapter for one in batch], width)
        ids = [token for row in new for token in (*row, *[0] * (width - len(row)))]
        hidden = self._hidden(ids, positions)
        lasts = [number * width + len(row) - 1 for number, row in enumerate(new)]
        return whole_prompts(batch, new, lasts, hidden)

    def decode(self, batch: Sequence[Request]) -> tuple[list[Request], Tensor]:
        """Compute the one token that each request lacks; return them in another order, and their hidden states (B, H)."""
        ordered = sorted(batch, key=lambda request: self._rank(request.place, 1))
        starts = [len(request.place.tokens) for request in ordered]
        tables = [request.place.pages for request in ordered]
        if self.bank is not None:
            self.bank.aim([request.adapter for request in ordered])
        positions = self.cache.aim(tables, starts, [start + 1 for start in starts], 1)
        hidden = self._hidden([request.last for request in ordered], positions)
        return ordered, cached(ordered, hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits (B, V) of hidden states (B, H)."""
        return self.decoder.logits(hidden)

    def sample(self, logits: Tensor, batch: Sequence[Request]) -> tuple[list[int], list[float]]:
        """Sample one token for each row of logits (B, V); return the ids and their logprobs."""
        params = [request.params for request in batch]
        return sample_tokens(logits, params, [request.uniforms.next() for request in batch])

    def sample_ahead(
        self, batch: Sequence[Request], count: int, *, until_end: bool
    ) -> list[tuple[list[int], list[float]]]:
        """Sample up to `count` tokens for each request in one call; return them and their logprobs.

        The cache has a place for each, and the same tokens end all of the requests. `until_end`: all stop with the first.
        """
        raise NotImplementedError(f"{type(self).__name__} samples one token at a time.")

    def _hidden(self, ids: list[int], positions: Tensor) -> Tensor:
        given = torch.tensor(ids, device=self.decoder.device)
        return self.decoder.hidden_cached(given, positions, self.cache)

    def _rank(self, slot: Slot, count: int) -> int:
        """Return a row's place in a batch: whole pages as they lie, to be read there; of small ones the longest first."""
        return slot.pages[0] if self.cache.size.whole else -(len(slot.tokens) + count)


def new_tokens(batch: Sequence[Stretch]) -> tuple[list[list[int]], list[int]]:
    """Return each stretch's token ids, and how many tokens the cache has before them."""
    starts = [len(one.request.place.tokens) for one in batch]
    new = [
        one.request.ids[start : start + one.count] for one, start in zip(batch, starts, strict=True)
    ]
    return new, starts


def whole_prompts(
    batch: Sequence[Stretch], new: Sequence[list[int]], lasts: Sequence[int], hidden: Tensor
) -> tuple[list[Request], Tensor]:
    """Note that the stretches are cached; return the requests that lack nothing now, and their rows `lasts` of `hidden`."""
    whole, last = [], []
    for one, row, end in zip(batch, new, lasts, strict=True):
        # Only once it is computed: others may share these pages.
        one.request.place.tokens.extend(row)
        if not one.request.missing:
            whole.append(one.request)
            last.append(end)
    return whole, hidden[torch.tensor(last, dtype=torch.long, device=hidden.device)]


def cached(ordered: Sequence[Request], hidden: Tensor) -> Tensor:
    """Note that each request's last token is cached; return `hidden`."""
    for request in ordered:
        request.place.tokens.append(request.last)
    return hidden
