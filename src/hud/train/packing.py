"""Which sequences share a pass: micro-batches within a token budget, of nearly equal cost.

Sequences are laid end to end without padding, so a micro-batch costs what its tokens cost. How sequences are
packed changes memory and speed, never the gradient.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def pack(lengths: Sequence[int], budget: int, *, at_least: int = 1) -> list[list[int]]:
    """Return micro-batches of positions into `lengths`; no pack is over `budget` tokens.

    A sequence longer than the budget gets a pack of its own. `at_least` asks for that many packs, where
    there are enough sequences.
    """
    if not lengths:
        return []
    order = sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))
    count = min(len(lengths), max(at_least, -(-sum(lengths) // budget)))
    while True:
        packs = _balanced(order, lengths, count)
        if count == len(lengths) or all(
            len(pack) == 1 or sum(lengths[p] for p in pack) <= budget for pack in packs
        ):
            # Neighbours by length: what pads inside a pack (attention by length class) pads little.
            return packs
        count += 1


def _balanced(order: list[int], lengths: Sequence[int], count: int) -> list[list[int]]:
    """Give each sequence, longest first, to the pack that is lightest so far."""
    packs: list[list[int]] = [[] for _ in range(count)]
    lightest = [(0, number) for number in range(count)]
    for position in order:
        load, number = heapq.heappop(lightest)
        packs[number].append(position)
        heapq.heappush(lightest, (load + lengths[position], number))
    return packs
