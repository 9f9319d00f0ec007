"""The plain runner: forward passes of a decoder as it is, and the tokens sampled from them.

Kernels derive their runners from it and replace `last_hidden` by faster code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from hud.engine.decoder import Decoder
from hud.engine.kernels import backend_for
from hud.engine.sample.adapter_bank import Adapter, AdapterBank
from hud.engine.sample.kv_cache import KVCache
from hud.engine.sample.prefix_cache import PrefixCache
from hud.engine.sample.request import Request
from hud.engine.sample.runner import Runner, Sampled
from hud.engine.sample.scheduler import Chunk, Scheduler
from hud.engine.sample.token_sampling import likeliest_tokens, sample_tokens


def runner_type(decoder: Decoder, bank: AdapterBank | None = None) -> type[Runner]:
    """Return the class that computes a sampler's passes with `decoder`: that of its states, a kernel backend's, or the plain one."""
    if decoder.keeps_state:
        from hud.engine.sample.own_states import StateRunner  # Derived from the plain runner.

        return StateRunner
    if decoder.config.recurrent is not None:
        from hud.engine.sample.hybrid_runner import HybridRunner  # Derived from the plain runner.

        return HybridRunner
    backend = backend_for(decoder.device)
    kind: type[Runner] | None = None
    if backend is not None:
        kind = backend.runner(decoder, adapters=bank is not None)
    return kind or PlainRunner


class PlainRunner(Runner):
    """Computes with a decoder, or with a bank of adapters over it."""

    cache_type: ClassVar[type[KVCache]] = KVCache

    prefix_cache_type: ClassVar[type[PrefixCache]] = PrefixCache

    packs: ClassVar[bool] = False
    """True: prompt chunks of any lengths are one pass, without padding."""

    interrupted: Callable[[], bool] = staticmethod(lambda: False)
    """Returns True while a caller waits for the end of `decode`."""

    deliver: Callable[[Sampled], None] = staticmethod(lambda sampled: None)
    """Takes tokens that are known before the end of `decode`, which does not return them again."""

    def __init__(
        self, decoder: Decoder, cache: KVCache, most: int, bank: AdapterBank | None = None
    ) -> None:
        """`most`: the largest batch of `decode`."""
        self.cache = cache
        self.most = most
        self.bank = bank
        self.use(decoder)

    def use(self, decoder: Decoder) -> None:
        """Compute with another decoder of the same shape."""
        self.decoder = decoder

    def refresh(self) -> None:
        """Compute with the decoder's weights as they are now; called before the first pass and after each change."""

    def warm_up(self) -> bool:
        """Do what would hold up sequences later; called while none is active. False: `interrupted`, and not done yet."""
        return True

    def prompt_tokens(self, usual: int) -> int:
        """Return how many prompt tokens the next step may compute beside decoding sequences; `usual`: by size alone."""
        return usual

    def reserve(self, batch: Sequence[Chunk], scheduler: Scheduler) -> None:
        """Prepare the next `decode` of `batch`, while the scheduler is locked."""

    def decode(self, batch: Sequence[Chunk]) -> Sampled:
        """Compute the one token that each sequence lacks, and sample the next, or several."""
        return self.step(batch)

    def step(self, chunks: Sequence[Chunk]) -> Sampled:
        """Compute chunks of sequences; sample a token for each sequence that is then in the cache as a whole."""
        # The longest first: rows of like length are gathered together.
        chunks = sorted(chunks, key=lambda chunk: -len(chunk.request.place.tokens) - chunk.count)
        self.seat([chunk.request for chunk in chunks])
        tables = [chunk.request.place.pages for chunk in chunks]
        starts = [len(chunk.request.place.tokens) for chunk in chunks]
        ids = [chunk.request.next_ids(chunk.count) for chunk in chunks]
        if self.bank is not None:
            self.aim_adapters(self.bank, [chunk.request.adapter for chunk in chunks], ids)
        hidden = self.last_hidden(ids, tables, starts)
        for chunk, row in zip(chunks, ids, strict=True):
            # Only once it is computed: others may share these pages.
            chunk.request.place.tokens.extend(row)
        complete = [place for place, chunk in enumerate(chunks) if not chunk.request.missing]
        if not complete:
            return []
        batch = [chunks[place].request for place in complete]
        if self.bank is not None:
            self.bank.aim(
                [request.adapter for request in batch]
            )  # The head computes these rows alone.
        return self.sample(batch, hidden if len(complete) == len(chunks) else hidden[complete])

    def seat(self, requests: Sequence[Request]) -> None:
        """Note the requests of the rows of the next `last_hidden`."""
        self.cache.seat([request.place for request in requests])

    def aim_adapters(
        self, bank: AdapterBank, rows: Sequence[Adapter | None], ids: Sequence[list[int]]
    ) -> None:
        """Set the adapter of each row for the next `last_hidden` of `ids`."""
        bank.aim(rows, max(map(len, ids)))

    def last_hidden(
        self, ids: Sequence[list[int]], tables: Sequence[list[int]], starts: Sequence[int]
    ) -> Tensor:
        """Compute the new tokens `ids` of each row; return the last hidden state of each row (B, H).

        `tables` holds each row's pages, `starts` the tokens in them so far.
        """
        width = max(map(len, ids))
        ends = [start + len(row) for start, row in zip(starts, ids, strict=True)]
        positions = self.cache.aim(tables, starts, ends, width)
        padded = torch.tensor(
            [[*row, *[0] * (width - len(row))] for row in ids], device=self.decoder.device
        )
        hidden = self.hidden(padded.flatten(), positions)
        if width == 1:
            return hidden
        return hidden[[number * width + len(row) - 1 for number, row in enumerate(ids)]]

    def hidden(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Return the last hidden states (B * width, H) of the rows' new tokens (B * width,), for which the cache is aimed."""
        return self.decoder.hidden_cached(input_ids, positions, self.cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits (B, V) of hidden states (B, H)."""
        return self.decoder.logits(hidden)

    def sample(self, batch: Sequence[Request], hidden: Tensor) -> Sampled:
        """Sample a token for each request from its last hidden state (B, H)."""
        logits = self.logits(hidden)
        params = [request.params for request in batch]
        for row, request in enumerate(batch):
            if request.constraint is not None:
                request.constraint.allow(logits[row])
        numbers = [request.uniforms.next() for request in batch]
        ids, logprobs = sample_tokens(logits, params, numbers)
        top = max(request.top for request in batch)
        likeliest = likeliest_tokens(logits, params, top) if top else [[]] * len(batch)
        for request, token, tokens in zip(batch, ids, likeliest, strict=True):
            if request.constraint is not None:
                request.constraint.take(token)
            if top:
                request.likeliest.append(tokens[: request.top])
        return [
            (request, [token], [logprob])
            for request, token, logprob in zip(batch, ids, logprobs, strict=True)
        ]
