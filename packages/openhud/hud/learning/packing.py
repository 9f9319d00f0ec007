"""Packing: sequences into micro-batches within a token budget, of nearly equal cost.

Sequences are concatenated without padding; only attention may pad, to the longest of a pass, so sequences of similar
length are packed together. Sequences of a family share a prefix, which a pass computes once, so families are packed
together, too. Packing affects memory and speed, never the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Number of tokens that a sequence adds to a pass."""

    own: int
    """Tokens after the shared prefix."""
    shared: int = 0
    """Tokens of the prefix shared with its family, computed once in a pass."""
    family: Hashable = None

    @property
    def total(self) -> int:
        """Tokens of the sequence alone."""
        return self.own + self.shared


def pack(costs: Sequence[Cost], budget: int, *, at_least: int = 1) -> list[list[int]]:
    """Return micro-batches of positions into `costs`, families of long sequences first.

    A pack has at most `budget` tokens, except for a single longer sequence. `at_least` is a minimum number of packs, given
    enough sequences.
    """
    if not costs:
        return []
    order = _order(costs)
    count = max(len(_filled(order, costs, budget)), min(at_least, len(order)))
    # The smallest token limit for this number of packs, so that costs are similar.
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        if len(_filled(order, costs, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    packs = _filled(order, costs, high)
    while len(packs) < count:
        largest = max(range(len(packs)), key=lambda number: len(packs[number]))
        half = len(packs[largest]) // 2
        packs[largest : largest + 1] = [packs[largest][:half], packs[largest][half:]]
    return packs


def deal(
    packs: Callable[[int], list[list[int]]],
    rank: int,
    ranks: int,
    *,
    at_least: int = 1,
    at_once: int = 1,
) -> list[list[int]]:
    """Return a rank's share of the micro-batches of `packs(at_least)`; all ranks' shares have equal length.

    Concurrent micro-batches are neighbours, so of similar cost; a rank computes `at_once` of its own at the same time, and
    none alone at the end while there are sequences for another. A rank without work gets an empty one.
    """
    multiple = ranks * at_once
    micro_batches = packs(max(at_least, multiple))
    while len(micro_batches) % multiple:
        more = packs(len(micro_batches) + multiple - len(micro_batches) % multiple)
        if len(more) <= len(micro_batches):  # No more sequences for another pack.
            break
        micro_batches = more
    rounds = -(-len(micro_batches) // ranks)
    micro_batches = micro_batches + [[]] * (rounds * ranks - len(micro_batches))
    return micro_batches[rank::ranks]


def _order(costs: Sequence[Cost]) -> list[int]:
    """Return positions by descending length, with each family contiguous at its longest member's position."""
    longest: dict[Hashable, int] = {}
    for cost in costs:
        longest[cost.family] = max(longest.get(cost.family, 0), cost.total)
    first: dict[Hashable, int] = {}

    def key(position: int) -> tuple[int, int, int, int]:
        cost = costs[position]
        if cost.family is None:
            return (-cost.total, position, 0, 0)
        opened = first.setdefault(cost.family, position)
        return (-longest[cost.family], opened, -cost.total, position)

    return sorted(range(len(costs)), key=key)


def tokens_of(places: Sequence[int], costs: Sequence[Cost]) -> int:
    """Return the number of tokens computed by a pass of these `places` of `costs`."""
    families = {costs[place].family: costs[place].shared for place in places}
    alone = sum(costs[place].shared for place in places if costs[place].family is None)
    families.pop(None, None)
    return sum(costs[place].own for place in places) + sum(families.values()) + alone


def _filled(order: Sequence[int], costs: Sequence[Cost], most: int) -> list[list[int]]:
    """Cut `order` into maximal contiguous slices of at most `most` tokens; a longer sequence is alone."""
    packs: list[list[int]] = []
    load, seen = 0, set[Hashable]()
    for place in order:
        cost = costs[place]
        more = cost.own if cost.family is not None and cost.family in seen else cost.total
        if not packs or load + more > most:
            packs.append([])
            load, seen, more = 0, set(), cost.total
        packs[-1].append(place)
        load += more
        seen.add(cost.family)
    return packs
