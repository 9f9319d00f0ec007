"""The scheduler: which requests are admitted, whose prompt is computed next, which decode, and which are preempted.

It computes nothing. Its owner holds a lock around every call.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hud.engine.sample.prefix_cache import SHORTEST_SHARED, Placement, PrefixCache, shared_length
from hud.engine.sample.request import Request

PASS_TOKENS = 8192
"""Most prompt tokens, padding included, in one forward pass, and between two decode steps while no sequence decodes."""
CHUNK_TOKENS = 512
"""Most tokens of one prompt in one forward pass. Longer ones cost more for each token: attention computes what its mask hides."""
PASS_SCORES = 1 << 25
"""Most pairs of a new token and a key in one forward pass, a limit on the memory of their mask."""


@dataclass(slots=True)
class Chunk:
    """The next `count` tokens of a sequence that are not in the cache yet."""

    request: Request
    count: int


class Scheduler:
    """The queue, and the active sequences."""

    def __init__(self, prefix_cache: PrefixCache, most: int, *, packed: bool = False) -> None:
        """`packed`: the runner computes chunks of any lengths in one pass, without padding or masks."""
        self.prefix_cache = prefix_cache
        self.packed = packed
        self.most = most
        """Most active sequences at a time."""
        self.waiting: deque[Request] = deque()
        self.active: list[Request] = []
        """Admitted sequences, the oldest first. One without a slot was preempted, and continues when there is room."""
        self.prefilled = self.reused = 0
        """Positions computed, those of preempted sequences once more; and positions that were found in the cache instead."""
        self.preemptions = 0

    def admit(self, version: str | None, *, newcomers: bool) -> list[Placement]:
        """Give slots to preempted sequences and then, while there is room and `newcomers` are let in, to waiting ones.

        A request that shares a prefix with a prompt that is being computed waits for that. `version` names the weights.
        Returns the placements, whose pages are to be copied in order.
        """
        placed: list[Placement] = []
        for request in self.active:
            if request.slot is None and not self._place(request, placed):
                return placed
        if not (self.waiting and newcomers):
            return placed
        later: list[Request] = []
        computed = [request for request in self.active if _is_computed(request)]
        while self.waiting and len(self.active) + len(later) < self.most:
            request = take_turn(self.waiting, self.active)
            if request.abandoned:
                continue
            if self._gains_by_waiting(request, computed):
                later.append(request)
            elif self._place(request, placed):
                request.version = request.adapter.version if request.adapter else version
                self.active.append(request)
                if _is_computed(request):
                    computed.append(request)
            else:
                later.append(request)
                break
        self.waiting.extendleft(reversed(later))
        return placed

    def prefill(self, budget: int) -> list[list[Chunk]]:
        """Return batches of prompt chunks, at most `budget` tokens together, the oldest requests first."""
        if self.packed:
            return self._packed(budget)
        chunks = []
        for request in self.active:
            if request.slot is None or request.missing < 2 or budget < 1:
                continue
            count = min(request.missing, budget, CHUNK_TOKENS)
            count = min(count, self.prefix_cache.until_saved(request.slot) or count)
            count = min(count, max(1, PASS_SCORES // (len(request.slot.tokens) + count)))
            budget -= count
            chunks.append(Chunk(request, count))
        return list(_batches(chunks))

    def _packed(self, budget: int) -> list[list[Chunk]]:
        """Return one batch of at most `budget` tokens: `CHUNK_TOKENS` of each prompt, then more of the oldest."""
        computed = [
            (request, missing)
            for request in self.active
            if request.slot is not None and (missing := request.missing) > 1
        ]
        counts: dict[Request, int] = {}
        for most in (CHUNK_TOKENS, PASS_TOKENS):
            for request, missing in computed:
                if budget < 1:
                    break
                before = counts.get(request, 0)
                counts[request] = min(missing, most, before + budget)
                budget -= counts[request] - before
        return [[Chunk(*item) for item in counts.items()]] if counts else []

    def decode(self) -> list[Chunk]:
        """Return the sequences that lack one token in the cache, with a place for it; preempt the youngest if need be."""
        ready = [
            request for request in self.active if request.slot is not None and request.missing == 1
        ]
        for request in ready:
            # A request before this one may have preempted it.
            while request.slot is not None:
                if self.prefix_cache.grow(request.slot):
                    break
                self._preempt(
                    next(
                        sequence for sequence in reversed(self.active) if sequence.slot is not None
                    )
                )
        return [Chunk(request, 1) for request in ready if request.slot is not None]

    @property
    def decoding(self) -> bool:
        """True while active sequences have sampled tokens."""
        return any(request.token_ids for request in self.active)

    def leave(self, request: Request) -> None:
        """Remove an active sequence; what its slot holds may be reused."""
        self.active.remove(request)
        if request.slot is not None:
            self.prefix_cache.release(request.slot)

    def _place(self, request: Request, placed: list[Placement]) -> bool:
        """Give a sequence a slot, if there are pages for it and, next to other sequences, one more to grow into."""
        ahead = min(self.prefix_cache.page_tokens, request.most - len(request.token_ids))
        shared = any(sequence.slot is not None for sequence in self.active)
        adapter = request.adapter
        if adapter is None and request.fork is not None:
            adapter = request.fork.adapter
        placement = self.prefix_cache.place(
            request.ids, ahead if shared else 0, adapter, request.pictures
        )
        if placement is None:
            return False
        request.adapter = adapter
        request.slot = placement.slot
        if not request.preempted:
            request.cached = placement.cached
        self.reused += placement.cached
        placed.append(placement)
        return True

    def _gains_by_waiting(self, request: Request, computed: Sequence[Request]) -> bool:
        """Return whether a prompt that is being `computed` will share more with this one than the cache does now."""
        if not self.prefix_cache.shares:
            return False
        coming, salt = 0, request.fork.adapter if request.fork is not None else None
        for other in computed:
            if other.adapter is not salt:
                continue
            shared = shared_length(other.prompt, request.prompt, beyond=coming)
            coming = max(coming, self.prefix_cache.reusable_later(other.place, shared))
        coming = min(coming, len(request.prompt) - 1)
        return (
            coming > 0
            and coming >= self.prefix_cache.reusable(request.prompt, salt) + SHORTEST_SHARED
        )

    def preempt_all(self) -> None:
        """Take the slots of all active sequences, which are computed again."""
        for request in self.active:
            if request.slot is not None:
                self._preempt(request)

    def _preempt(self, request: Request) -> None:
        self.prefix_cache.release(request.place)
        request.slot = None
        request.preempted += 1
        self.preemptions += 1


def _is_computed(request: Request) -> bool:
    """Return whether the prompt of an active sequence is being computed, for others to share."""
    return request.slot is not None and not request.slot.stale and request.missing > 1


def take_turn(waiting: deque[Request], active: Sequence[Request]) -> Request:
    """Remove and return the first waiting request of the tenant with the fewest active sequences."""
    first = waiting[0].tenant
    if all(request.tenant == first for request in waiting):
        return waiting.popleft()
    busy = Counter(request.tenant for request in active)
    place = min(range(len(waiting)), key=lambda at: busy[waiting[at].tenant])
    request = waiting[place]
    del waiting[place]
    return request


def _batches(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """Yield chunks of like length together, so that little is padded."""
    rest = sorted(chunks, key=lambda chunk: chunk.count, reverse=True)
    while rest:
        batch: list[Chunk] = []
        width, longest = rest[0].count, 0
        for chunk in rest:
            longest = max(longest, len(chunk.request.place.tokens) + width)
            tokens = width * (len(batch) + 1)
            over = tokens > PASS_TOKENS or tokens * longest > PASS_SCORES
            if batch and (over or width > 2 * chunk.count + SHORTEST_SHARED):
                break
            batch.append(chunk)
        rest = rest[len(batch) :]
        yield batch
