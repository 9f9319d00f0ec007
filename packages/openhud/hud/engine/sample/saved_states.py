"""The prefix cache of models with recurrent layers: a prefix is reused where the state after it was saved.

Keys and values of a part of a prefix are a part of them; a recurrent state is that of all tokens before it, and continues from
there alone. Each active sequence has a state, and idle slots and prompts have saved ones: at the end of a turn, before the last
token of a prompt, which others may begin with, and where a prompt branched off from what other slots hold (as in Marconi,
arXiv 2411.19379). All are rows of one table. Saved states are dropped for active ones, the least recently used first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hud.engine.sample.pages import Pages
from hud.engine.sample.prefix_cache import (
    SHORTEST_SHARED,
    Placement,
    PrefixCache,
    Slot,
    shared_length,
)
from hud.trace.sampled.pictures import Picture


@dataclass
class SlotStates:
    """Rows of a slot's states."""

    current: int | None = None
    """State after all of its tokens; None: it is idle."""
    saved: dict[int, int] = field(default_factory=dict)
    """States after its first tokens, by their number."""
    planned: dict[int, int] = field(default_factory=dict)
    """States to save, by the number of tokens."""


def states_of(slot: Slot) -> SlotStates:
    """Return the states of a slot of `SavedStates`."""
    assert isinstance(slot.state, SlotStates)
    return slot.state


def with_pictures(ids: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
    """Return ids in which the first token of each picture tells its pixels: no id of a token is below 0."""
    marked = list(ids)
    for picture in pictures:
        if picture.start < len(marked):
            marked[picture.start] = -1 - int(picture.pixels[:16], 16)
    return marked


class SavedStates(PrefixCache):
    """Slots with pages and states."""

    def __init__(self, pages: Pages, page_tokens: int, states: int) -> None:
        """`states`: rows of the table."""
        super().__init__(pages, page_tokens, states)
        self._free = list(range(states))[::-1]

    def place(
        self,
        ids: Sequence[int],
        ahead: int = 0,
        salt: object = None,
        pictures: Sequence[Picture] = (),
    ) -> Placement | None:
        ids = with_pictures(ids, pictures)
        common = super()._best(ids, salt)[1]
        source, cached = self._best(ids, salt)
        row = self._take(keep=source)
        if row is None:
            return None
        taken_over = source is not None and self._is_taken_over(source, cached)
        inherited, origin = {}, None
        if source is not None:
            origin = states_of(source).saved[cached]
            if taken_over:
                inherited, states_of(source).saved = states_of(source).saved, {}
        placement = self._placed(source, cached, ids, ahead, salt)
        if placement is None:
            self._free.append(row)
            if source is not None and taken_over:
                states_of(source).saved = inherited
            return None
        states = placement.slot.state = SlotStates(row, inherited)
        last = len(ids) - 1
        for count in (last, common):
            if count == common and count > last - SHORTEST_SHARED:
                continue
            if count >= max(cached + 1, SHORTEST_SHARED):
                planned = self._take_free_or_saved(self._idle)
                if planned is not None:
                    states.planned[count] = planned
        state = None if origin is None else (origin, row)
        return Placement(placement.slot, cached, placement.copied, state)

    def reusable_later(self, slot: Slot, shared: int) -> int:
        return max((count for count in states_of(slot).planned if count <= shared), default=0)

    def until_saved(self, slot: Slot) -> int | None:
        ends = [count - len(slot.tokens) for count in states_of(slot).planned]
        return min((end for end in ends if end > 0), default=None)

    def release(self, slot: Slot) -> None:
        states = states_of(slot)
        self._free += states.planned.values()
        states.planned = {}
        if states.current is not None:
            replaced = states.saved.pop(len(slot.tokens), None)
            if replaced is not None:
                self._free.append(replaced)
            states.saved[len(slot.tokens)] = states.current
        states.current = None
        super().release(slot)

    def _best(self, ids: Sequence[int], salt: object) -> tuple[Slot | None, int]:
        """Return the slot with the longest prefix of the ids that it has a saved state of, and its length."""
        best, most = None, SHORTEST_SHARED - 1
        for slot in self:
            counts = [count for count in states_of(slot).saved if most < count < len(ids)]
            if slot.stale or slot.salt is not salt or not counts:
                continue
            shared = shared_length(slot.tokens, ids, beyond=most)
            most_here = max((count for count in counts if count <= shared), default=0)
            if most_here > most:
                best, most = slot, most_here
        return (None, 0) if best is None else (best, most)

    def _cut(self, slot: Slot, count: int) -> None:
        super()._cut(slot, count)
        states = states_of(slot)
        for tokens in [tokens for tokens in states.saved if tokens > len(slot.tokens)]:
            self._free.append(states.saved.pop(tokens))
        if not slot.tokens:
            self._free += states.saved.values()
            states.saved = {}
        if slot.pages and not states.saved:
            super()._cut(slot, 0)  # Nothing continues it.

    def _take(self, keep: Slot | None = None) -> int | None:
        """Return a row for an active sequence, after dropping what was saved longest ago, but none of `keep`; None: all are active."""
        for slots in (self._idle, self._busy):
            row = self._take_free_or_saved(slots, keep)
            if row is not None:
                return row
        for slot in self._busy:
            planned = states_of(slot).planned
            if planned:
                return planned.popitem()[1]
        return None

    def _take_free_or_saved(self, slots: Iterable[Slot], keep: Slot | None = None) -> int | None:
        """Return a free row or, without one, that of the first saved state of some slots, the shortest of its slot; None: there is none."""
        if self._free:
            return self._free.pop()
        for slot in slots:
            saved = states_of(slot).saved
            if slot is keep or not saved:
                continue
            row = saved.pop(min(saved))
            if slot in self._idle and not saved:
                self._cut(slot, 0)
            return row
        return None
