"""Which conversation's keys and values lie in which slot of the cache, and what can be reused of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

SHORTEST_SHARED = 16
"""A shared beginning shorter than this is computed again rather than copied."""


@dataclass(eq=False)
class Slot:
    """One row of the cache."""

    index: int
    tokens: list[int] = field(default_factory=list)
    """The ids whose keys and values it holds."""
    busy: bool = False
    used: int = 0
    """When it was last given out, as a count."""
    stale: bool = False
    """True while a sequence goes on here that older weights began: nobody else may use what it holds."""


@dataclass(frozen=True)
class Placement:
    """Where a prompt goes, and how much of it is there already."""

    slot: Slot
    cached: int
    source: Slot | None = None
    """The slot to copy the cached part from; None where it lies in place."""


class Slots:
    """The slots of one cache. Weights that change make everything in them worthless: `forget`."""

    def __init__(self, count: int) -> None:
        self.all = [Slot(index) for index in range(count)]
        self._clock = 0

    @property
    def free(self) -> bool:
        """True when a prompt could be placed."""
        return any(not slot.busy for slot in self.all)

    def place(self, prompt: Sequence[int]) -> Placement:
        """Choose a slot for a prompt, and mark it busy; the last token of a prompt is never taken as cached.

        A slot whose whole content begins the prompt (the conversation's last turn) is taken over. Otherwise
        the slot that was idle longest, with the longest beginning that any slot shares copied into it.
        """
        last = len(prompt) - 1
        own = max(
            (slot for slot in self.all if not slot.busy and self._continues(slot, prompt)),
            key=lambda slot: len(slot.tokens),
            default=None,
        )
        if own is not None:
            return self._take(Placement(own, min(len(own.tokens), last)))
        # The lowest of the empty ones, so that busy slots stay close together at the front.
        slot = min(
            (slot for slot in self.all if not slot.busy),
            key=lambda slot: slot.used if slot.tokens else -1,
        )
        shared, source = 0, None
        for other in self.all:
            if other.stale:
                continue
            count = shared_length(other.tokens, prompt, beyond=shared)
            if count > shared:
                shared, source = count, other
                if shared >= last:
                    break
        shared = min(shared, last)
        if source is None or shared < SHORTEST_SHARED:
            return self._take(Placement(slot, 0))
        return self._take(Placement(slot, shared, None if source is slot else source))

    def release(self, slot: Slot) -> None:
        """Give a slot back; what it holds stays useful until the slot is needed."""
        slot.busy = False
        if slot.stale:
            slot.stale, slot.tokens = False, []

    def forget(self) -> None:
        """Forget what the slots hold, those of sequences on their way once these end."""
        for slot in self.all:
            if slot.busy:
                slot.stale = True
            else:
                slot.tokens = []

    @staticmethod
    def _continues(slot: Slot, prompt: Sequence[int]) -> bool:
        count = len(slot.tokens)
        return SHORTEST_SHARED <= count <= len(prompt) and prompt[:count] == slot.tokens

    def _take(self, placement: Placement) -> Placement:
        self._clock += 1
        slot = placement.slot
        slot.used = self._clock
        slot.busy = True
        # From here on only this much of it will stay: nobody else may copy the rest.
        slot.tokens = slot.tokens[: placement.cached] if placement.source is None else []
        return placement


def shared_length(a: Sequence[int], b: Sequence[int], *, beyond: int = 0) -> int:
    """Return how many leading tokens `a` and `b` share; 0 where it is not more than `beyond`."""
    most = min(len(a), len(b))
    if most <= beyond or a[: beyond + 1] != b[: beyond + 1]:
        return 0
    low, high = beyond + 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
