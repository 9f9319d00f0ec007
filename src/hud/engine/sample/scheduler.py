"""What a sampler computes next: who is admitted, whose prompt goes on, who draws, and who makes room.

It decides and keeps the books; it computes nothing. Its owner holds a lock around every call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hud.engine.sample.fairness import take_turn
from hud.engine.sample.kv_cache import KVCache
from hud.engine.sample.request import Request
from hud.engine.sample.slots import SHORTEST_SHARED, Placement, Slots, shared_length

PASS_TOKENS = 8192
"""Most prompt tokens, padding included, in one forward pass, and between two decode steps while nobody draws."""
STRETCH_TOKENS = 512
"""Most of one prompt in one forward pass. Wider ones cost more for each token: attention computes what its mask hides."""
PASS_SCORES = 1 << 25
"""Most pairs of a new token and a key in one forward pass: their mask must fit into memory."""


@dataclass
class Counts:
    """What was done so far; see `SamplerStatistics`."""

    prefilled: int = 0
    reused: int = 0
    preemptions: int = 0


@dataclass(frozen=True)
class SamplerStatistics:
    """What a sampler did so far, and what its cache holds."""

    prefilled: int
    """Prompt positions computed, those of preempted sequences once more."""
    reused: int
    """Positions that sequences found in the cache instead."""
    preemptions: int
    """How many times a sequence made room for older ones."""
    pages: int
    pages_in_use: int
    """Pages that hold something, of conversations on their way or not."""
    cache_bytes: int
    """Size of the cache, which never changes."""
    most_bytes: int
    """The most that was in use of it at any time."""


@dataclass(frozen=True)
class Stretch:
    """The next `count` tokens of a sequence that are not in the cache yet."""

    request: Request
    count: int


class Schedule:
    """The queue, and the sequences on their way."""

    def __init__(self, slots: Slots, most: int) -> None:
        self.slots = slots
        self.most = most
        """Most sequences on their way at a time."""
        self.waiting: deque[Request] = deque()
        self.active: list[Request] = []
        """The sequences on their way, the oldest first. One without a slot was preempted, and goes on when there is room."""
        self.counts = Counts()

    def admit(self, version: str | None, *, newcomers: bool) -> list[Placement]:
        """Give slots to preempted sequences and then, where there is room and they are let in, to waiting ones.

        Whoever begins as a prompt that is being computed waits for that. `version` names the weights that they are drawn
        with. Returns what was placed, to be copied in order.
        """
        placed: list[Placement] = []
        for request in self.active:
            if request.slot is None and not self._place(request, placed):
                return placed
        later: list[Request] = []
        while self.waiting and newcomers and len(self.active) + len(later) < self.most:
            request = take_turn(self.waiting, self.active)
            if request.abandoned:
                continue
            if self._gains_by_waiting(request):
                later.append(request)
            elif self._place(request, placed):
                request.version = request.adapter.version if request.adapter else version
                self.active.append(request)
            else:
                later.append(request)
                break
        self.waiting.extendleft(reversed(later))
        return placed

    def prefill(self, budget: int) -> list[list[Stretch]]:
        """Return batches of prompts to go on with, at most `budget` tokens together, the oldest first."""
        stretches = []
        for request in self.active:
            if request.slot is None or request.missing < 2 or budget < 1:
                continue
            count = min(request.missing, budget, STRETCH_TOKENS)
            count = min(count, max(1, PASS_SCORES // (len(request.slot.tokens) + count)))
            budget -= count
            stretches.append(Stretch(request, count))
        return list(_batches(stretches))

    def decode(self) -> list[Request]:
        """Return the sequences that lack one token in the cache, with a place for it; the youngest make room if need be."""
        for request in self.active:
            # Whoever goes before may have taken its slot.
            while request.slot is not None and request.missing == 1:
                if self.slots.grow(request.slot):
                    break
                self._preempt(next(one for one in reversed(self.active) if one.slot is not None))
        return [one for one in self.active if one.slot is not None and one.missing == 1]

    def tokens_at_once(self, batch: Sequence[Request], most: int) -> int:
        """Return how many tokens, `most` at most, all sequences of a batch may draw in one call, with a place for each.

        0 where somebody has to see their logits, or unlike tokens end them. Whoever is on its way keeps its pages; what idle
        conversations hold may go.
        """
        stops = batch[0].stop_ids
        if not all(request.plain and request.stop_ids == stops for request in batch):
            return 0
        # A prompt that is being computed, or a sequence that was preempted, goes on after this call.
        if most < 2 or len(batch) < len(self.active) or any(one.watched for one in batch):
            return 1
        for request in batch:
            needed = min(most, request.most - len(request.token_ids))
            found = self.slots.grow(request.place, needed)
            most = most if found >= needed else found
        return most

    @property
    def drawing(self) -> bool:
        """True while sequences have drawn something and go on."""
        return any(request.token_ids for request in self.active)

    def leave(self, request: Request) -> None:
        """Let a sequence go, and what it held be used by others."""
        self.active.remove(request)
        if request.slot is not None:
            self.slots.release(request.slot)

    def statistics(self, cache: KVCache) -> SamplerStatistics:
        """Return what was done so far, and how much of the cache is in use."""
        counts, pages = self.counts, self.slots.pages
        return SamplerStatistics(
            prefilled=counts.prefilled,
            reused=counts.reused,
            preemptions=counts.preemptions,
            pages=pages.count,
            pages_in_use=pages.in_use,
            cache_bytes=cache.keys.nbytes + cache.values.nbytes,
            most_bytes=pages.most_in_use * cache.page_bytes,
        )

    def _place(self, request: Request, placed: list[Placement]) -> bool:
        """Give a sequence a slot, if there are pages for it and, beside others, one more to grow into."""
        ahead = min(self.slots.page_tokens, request.most - len(request.token_ids))
        beside = any(one.slot is not None for one in self.active)
        adapter = request.adapter
        if adapter is None and request.fork is not None:
            adapter = request.fork.adapter
        placement = self.slots.place(request.ids, ahead=ahead if beside else 0, salt=adapter)
        if placement is None:
            return False
        request.adapter = adapter
        request.slot = placement.slot
        if not request.preempted:
            request.cached = placement.cached
        self.counts.reused += placement.cached
        placed.append(placement)
        return True

    def _gains_by_waiting(self, request: Request) -> bool:
        """Return True where a prompt that is being computed will have more of this one than the cache has now."""
        coming, salt = 0, request.fork.adapter if request.fork is not None else None
        for other in self.active:
            if other.slot is None or other.slot.stale or other.missing < 2:
                continue
            if other.adapter is not salt:
                continue
            shared = shared_length(other.prompt, request.prompt, beyond=coming)
            if shared >= len(other.slot.tokens) + SHORTEST_SHARED:
                coming = shared
        coming = min(coming, len(request.prompt) - 1)
        return coming > 0 and coming >= self.slots.reusable(request.prompt, salt) + SHORTEST_SHARED

    def _preempt(self, request: Request) -> None:
        assert request.slot is not None
        self.slots.release(request.slot)
        request.slot = None
        request.preempted += 1
        self.counts.preemptions += 1


def _batches(stretches: Sequence[Stretch]) -> Iterator[list[Stretch]]:
    """Yield stretches of like length together, so that none is padded by much."""
    rest = sorted(stretches, key=lambda one: one.count, reverse=True)
    while rest:
        batch: list[Stretch] = []
        width, longest = rest[0].count, 0
        for one in rest:
            longest = max(longest, len(one.request.place.tokens) + width)
            tokens = width * (len(batch) + 1)
            over = tokens > PASS_TOKENS or tokens * longest > PASS_SCORES
            if batch and (over or width > 2 * one.count + SHORTEST_SHARED):
                break
            batch.append(one)
        rest = rest[len(batch) :]
        yield batch
