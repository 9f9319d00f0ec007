"""The prefix cache: which token prefixes are in which pages of the key-value cache, for reuse by later prompts.

A slot holds one conversation's tokens and the pages that hold them in order. Slots with a common prefix share their whole pages;
the last page of each, which may be written to, is its own. Idle slots keep their pages until these are needed, and lose them
page by page from the end, the least recently used slot first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar

from hud.engine.sample.pages import Pages
from hud.trace.sampled.pictures import Picture

SHORTEST_SHARED = 16
"""A shorter common prefix is computed again."""
LITTLE_REST = 64
"""New tokens of a conversation's next turn up to which no other slot is compared: it could share no more than these."""
MOST_IDLE = 1024
"""Most idle slots: each is compared with every prompt that is placed."""


@dataclass(eq=False)
class Slot:
    """One conversation's place in the cache."""

    pages: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """The ids whose keys and values it holds."""
    salt: object = None
    """The adapter that its keys and values were computed with; None: the base's weights."""
    stale: bool = False
    """True while an active sequence holds keys of older weights: it is not shared."""
    state: object = None
    """State after `tokens` of a decoder that keeps its own (`Decoder.advance`), or rows of recurrent states (`saved_states`)."""
    uncomputed: int = 0
    """Last tokens that `state` lacks, of a decoder that gets prompts at once."""
    pictures: tuple[Picture, ...] = ()
    """Pictures among `tokens`."""


@dataclass(frozen=True)
class Placement:
    """A slot for a prompt, and how many of its tokens are cached there."""

    slot: Slot
    cached: int
    copied: tuple[int, int] | None = None
    """`(source, target)`: a page to copy to another before anything is written."""
    state: tuple[int, int] | None = None
    """`(source, target)`: a recurrent state to copy to another row, likewise."""


class PrefixCache:
    """The slots of one cache. After a change of weights, call `forget`."""

    shares: ClassVar[bool] = True
    """A prompt may begin with a part of what another slot holds."""

    def __init__(self, pages: Pages, page_tokens: int, states: int = 0) -> None:
        """`states`: recurrent states that a cache for it has room for."""
        del states
        self.pages = pages
        self.page_tokens = page_tokens
        self._busy: dict[Slot, None] = {}
        self._idle: dict[Slot, None] = {}
        """The least recently used first."""

    def place(
        self,
        ids: Sequence[int],
        ahead: int = 0,
        salt: object = None,
        pictures: Sequence[Picture] = (),
    ) -> Placement | None:
        """Return a busy slot with pages for `ids`; None if there are not enough for them and `ahead` more tokens.

        The last token never counts as cached. A slot that holds a prefix of the ids and nothing else (the conversation's last
        turn) is taken over; otherwise a new slot shares the longest prefix that any slot holds.
        """
        assert not pictures  # Of decoders with a state of their own.
        source, cached = self._best(ids, salt)
        return self._placed(source, cached, ids, ahead, salt)

    def _placed(
        self, source: Slot | None, cached: int, ids: Sequence[int], ahead: int, salt: object
    ) -> Placement | None:
        """Return what `place` returns, of a slot that shares the first `cached` tokens of `source`."""
        full_pages, rest = divmod(cached, self.page_tokens)
        shared = source.pages[: full_pages + (rest > 0)] if source is not None else []
        wanted = self._count(len(ids))
        pinned = sum(self.pages.pins[page] > 0 for page in shared[:full_pages])
        if not self.pages.provide(self._count(len(ids) + ahead) - pinned):
            return None
        for page in shared:
            self.pages.share(page)
        if source is not None and self._is_taken_over(source, cached):
            self._cut(source, 0)
        slot = Slot(shared[:full_pages], list(ids[:cached]), salt)
        copied = None
        if rest:
            copied = self._own(shared[full_pages])
            slot.pages.append(copied[1] if copied is not None else shared[full_pages])
        for page in slot.pages:
            self.pages.pin(page)
        while len(slot.pages) < wanted:
            self._extend(slot)
        self._busy[slot] = None
        return Placement(slot, cached, copied)

    def _is_taken_over(self, source: Slot, cached: int) -> bool:
        """Return whether a slot ends where a prompt that shares its first `cached` tokens begins."""
        return source in self._idle and len(source.tokens) <= cached + 1

    def until_saved(self, slot: Slot) -> int | None:
        """Return after how many more tokens a state of a slot is to be saved, which ends a pass; None: at no place."""
        del slot
        return None

    def grow(self, slot: Slot, count: int = 1) -> int:
        """Make room for `count` more tokens of a busy slot, and return for how many there is, 0 where every page is needed."""
        room = len(slot.pages) * self.page_tokens - len(slot.tokens)
        while room < count and self.pages.provide(1):
            self._extend(slot)
            room += self.page_tokens
        return min(count, room)

    def release(self, slot: Slot) -> None:
        """Make a slot idle; its prefix may be reused until its pages are needed."""
        del self._busy[slot]
        for page in slot.pages:
            self.pages.unpin(page)
        if slot.stale:
            slot.tokens = []
        self._idle[slot] = None
        self._cut(slot, self._count(len(slot.tokens)))
        if len(self._idle) > MOST_IDLE:
            self._cut(next(iter(self._idle)), 0)

    def forget(self) -> None:
        """Drop all prefixes; those of active sequences once these end."""
        for slot in self._busy:
            slot.stale = True
        for slot in list(self._idle):
            self._cut(slot, 0)

    def forget_adapter(self, adapter: object) -> None:
        """Drop the prefixes of an adapter that no request will use again."""
        for slot in [slot for slot in self._idle if slot.salt is adapter]:
            self._cut(slot, 0)

    def reusable(self, ids: Sequence[int], salt: object = None) -> int:
        """Return how many leading tokens of `ids`, computed with `salt`, are cached."""
        return self._best(ids, salt)[1]

    def reusable_later(self, slot: Slot, shared: int) -> int:
        """Return how many of the first `shared` tokens of a busy slot's prompt will be cached; 0: no more than are now."""
        return shared if shared >= len(slot.tokens) + SHORTEST_SHARED else 0

    def __iter__(self) -> Iterator[Slot]:
        return chain(self._busy, self._idle)

    def _best(self, ids: Sequence[int], salt: object) -> tuple[Slot | None, int]:
        """Return the slot with the longest prefix of the ids, and its length; preferably one that can be taken over."""
        ended = self._ended(ids, salt)
        if ended is not None and len(ids) - len(ended.tokens) <= LITTLE_REST:
            return ended, min(len(ended.tokens), len(ids) - 1)
        length = len(ids)
        best, most = ended, SHORTEST_SHARED - 1 if ended is None else len(ended.tokens)
        for slot in self:
            tokens = slot.tokens
            # Written out: one of a few hundred slots is rejected in a tenth of a microsecond.
            if (
                most < len(tokens)
                and most < length
                and tokens[most] == ids[most]
                and slot.salt is salt
                and not slot.stale
            ):
                count = shared_length(tokens, ids, beyond=most)
                if count > most:
                    best, most = slot, count
        if ended is not None and len(ended.tokens) >= most - SHORTEST_SHARED:
            best, most = ended, len(ended.tokens)
        most = min(most, length - 1)
        return (best, most) if best is not None and most >= SHORTEST_SHARED else (None, 0)

    def _ended(self, ids: Sequence[int], salt: object) -> Slot | None:
        """Return the idle slot that was used last of those that hold a prefix of the ids and nothing else."""
        length = len(ids)
        for slot in reversed(self._idle):
            tokens = slot.tokens
            if (
                SHORTEST_SHARED <= len(tokens) <= length
                and tokens[-1] == ids[len(tokens) - 1]
                and slot.salt is salt
                and tokens == ids[: len(tokens)]
            ):
                return slot
        return None

    def _own(self, page: int) -> tuple[int, int] | None:
        """Make the caller's reference to a page the only one; return what to copy for that."""
        # Eviction may drop every other reference to it.
        while self.pages.users[page] > 1 and not self.pages.free and self._evict():
            pass
        if self.pages.users[page] == 1:
            return None
        target = self.pages.take()
        self.pages.release(page)
        return page, target

    def _extend(self, slot: Slot) -> None:
        while not self.pages.free and self._evict():
            pass
        page = self.pages.take()
        self.pages.pin(page)
        slot.pages.append(page)

    def _evict(self) -> bool:
        """Drop the last page of the slot that was idle longest; False if none is idle."""
        slot = next(iter(self._idle), None)
        if slot is None:
            return False
        self._cut(slot, len(slot.pages) - 1)
        return True

    def _cut(self, slot: Slot, count: int) -> None:
        """Truncate an idle slot to its first `count` pages; without any it is removed."""
        while len(slot.pages) > count:
            self.pages.release(slot.pages.pop())
        del slot.tokens[count * self.page_tokens :]
        if not slot.pages:
            del self._idle[slot]

    def _count(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)


def shared_length(a: Sequence[int], b: Sequence[int], *, beyond: int = 0) -> int:
    """Return how many leading tokens `a` and `b` share; 0 if it is not more than `beyond`."""
    most = min(len(a), len(b))
    # One comparison spares most comparisons of a whole prefix.
    if most <= beyond or a[beyond] != b[beyond] or a[:beyond] != b[:beyond]:
        return 0
    low, high = beyond + 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
