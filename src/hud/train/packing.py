"""Which sequences share a pass: micro-batches within a token budget, of nearly equal size.

Sequences are laid end to end without padding; only attention pads, to the longest of a pass, so sequences of
like length go together. How sequences are packed changes memory and speed, never the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence


def pack(lengths: Sequence[int], budget: int, *, at_least: int = 1) -> list[list[int]]:
    """Return micro-batches of positions into `lengths`, longest sequences first.

    No pack holds more than `budget` tokens, but for a single sequence that is longer. `at_least` asks for that
    many packs, where there are enough sequences.
    """
    if not lengths:
        return []
    order = sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))
    count = min(len(lengths), max(at_least, -(-sum(lengths) // budget)))
    while True:
        packs = _slices(order, lengths, count)
        if count == len(lengths) or all(
            len(one) == 1 or sum(lengths[place] for place in one) <= budget for one in packs
        ):
            return packs
        count += 1


def _slices(order: list[int], lengths: Sequence[int], count: int) -> list[list[int]]:
    """Cut `order` into `count` contiguous slices, each as near as can be to its share of what is left."""
    packs: list[list[int]] = []
    left, start = sum(lengths), 0
    for slices_left in range(count, 0, -1):
        share, load, end = left / slices_left, 0, start
        # Every later slice needs a sequence too.
        while end <= len(order) - slices_left:
            length = lengths[order[end]]
            if end > start and load + length / 2 > share:
                break
            load, end = load + length, end + 1
        packs.append(order[start:end])
        left, start = left - load, end
    packs[-1].extend(order[start:])
    return packs
