"""Sampling with decoders that keep a state of their own for each sequence, such as state spaces (`Decoder.keeps_state`).

A state continues from its end only: the next turn of a conversation takes over the state of the last one, a prompt that
branches off is computed from its beginning, and a preempted sequence too. Pages hold nothing; they count tokens, so that
sequences are admitted, preempted and evicted as with keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from hud.engine.config import DecoderConfig
from hud.engine.sample.kv_cache import CacheSize, KVCache
from hud.engine.sample.plain_runner import PlainRunner
from hud.engine.sample.prefix_cache import Placement, PrefixCache, Slot
from hud.engine.sample.runner import Sampled
from hud.engine.sample.scheduler import Chunk
from hud.trace.sampled.pictures import Picture, pictures_within, same_pictures


class PageCount(KVCache):
    """A cache without keys and values: the number of its pages, and what so many of them would take."""

    def __init__(
        self, config: DecoderConfig, size: CacheSize, dtype: torch.dtype, device: torch.device
    ) -> None:
        del device
        self.size = size
        self._nbytes = size.nbytes(config, dtype)

    @property
    def nbytes(self) -> int:
        """Size of the keys and values of a full cache, which bounds that of the states."""
        return self._nbytes

    def free(self) -> None:
        """Free nothing: states end with their slots."""

    def experts_of(self, slot: Slot) -> Tensor | None:
        experts: Tensor | None = getattr(slot.state, "experts", None)
        return experts

    def copy(self, source: int, target: int) -> None:
        """Copy nothing: slots share no pages."""


class OwnStates(PrefixCache):
    """Slots that share nothing. An idle one is taken over as a whole, by a prompt that begins with all of its tokens."""

    shares: ClassVar[bool] = False

    def place(
        self,
        ids: Sequence[int],
        ahead: int = 0,
        salt: object = None,
        pictures: Sequence[Picture] = (),
    ) -> Placement | None:
        source = self._continued(ids, salt, pictures)
        if not self.pages.provide(self._count(len(ids) + ahead)):
            return None
        slot = Slot(salt=salt) if source is None else source
        self._idle.pop(slot, None)
        for page in slot.pages:
            self.pages.pin(page)
        while len(slot.pages) < self._count(len(ids)):
            self._extend(slot)
        self._busy[slot] = None
        return Placement(slot, len(slot.tokens))

    def reusable(self, ids: Sequence[int], salt: object = None) -> int:
        source = self._continued(ids, salt)
        return 0 if source is None else len(source.tokens)

    def _continued(
        self, ids: Sequence[int], salt: object, pictures: Sequence[Picture] = ()
    ) -> Slot | None:
        """Return the idle slot with most tokens that `ids` begin with, with the same pictures; None: there is none."""
        starts = [
            slot
            for slot in self._idle
            if slot.salt is salt
            and len(slot.tokens) < len(ids)
            and ids[: len(slot.tokens)] == slot.tokens
            and same_pictures(pictures_within(pictures, len(slot.tokens)), slot.pictures)
        ]
        return max(starts, key=lambda slot: len(slot.tokens), default=None)

    def _cut(self, slot: Slot, count: int) -> None:
        # A state has no beginning to be left with.
        super()._cut(slot, count if count >= self._count(len(slot.tokens)) else 0)


class StateRunner(PlainRunner):
    """Computes one sequence after another with the decoder's own states."""

    cache_type: ClassVar[type[KVCache]] = PageCount
    prefix_cache_type: ClassVar[type[PrefixCache]] = OwnStates
    packs: ClassVar[bool] = True
    """Long chunks: some states continue one token at a time, after their first chunk."""

    def step(self, chunks: Sequence[Chunk]) -> Sampled:
        complete: list[Chunk] = []
        states: list[Tensor] = []
        for chunk in chunks:
            slot, pictures = chunk.request.place, chunk.request.pictures
            slot.tokens.extend(chunk.request.next_ids(chunk.count))
            slot.pictures = pictures_within(pictures, len(slot.tokens))
            slot.uncomputed += chunk.count
            if self.decoder.whole_prompts and chunk.request.missing:
                continue
            since = len(slot.tokens) - slot.uncomputed
            new = [picture for picture in slot.pictures if picture.start >= since]
            slot.state, hidden = self.decoder.advance(slot.state, slot.tokens[since:], new)
            slot.uncomputed = 0
            if not chunk.request.missing:
                complete.append(chunk)
                states.append(hidden)
        if not complete:
            return []
        return self.sample([chunk.request for chunk in complete], torch.stack(states))
