"""Which sequences share a pass: micro-batches within a token budget, of nearly equal cost.

Sequences are laid end to end without padding; only attention pads, to the longest of a pass, so sequences of
like length go together. Sequences of one family begin with the same tokens, which a pass computes once, so
families stay together too. How sequences are packed changes memory and speed, never the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Tokens that one sequence makes a pass compute."""

    own: int
    """Those of its own."""
    shared: int = 0
    """Those that it has in common with its family, computed once in a pass."""
    family: Hashable = None

    @property
    def whole(self) -> int:
        """Tokens of the sequence alone."""
        return self.own + self.shared


def pack(costs: Sequence[Cost], budget: int, *, at_least: int = 1) -> list[list[int]]:
    """Return micro-batches of positions into `costs`, families of long sequences first.

    No pack computes more than `budget` tokens, but for a single sequence that is longer. `at_least` asks for
    that many packs, where there are enough sequences.
    """
    if not costs:
        return []
    order = _order(costs)
    count = min(len(order), max(at_least, -(-tokens_of(order, costs) // budget)))
    while True:
        packs = _slices(order, costs, count)
        if count == len(order) or all(
            len(one) == 1 or tokens_of(one, costs) <= budget for one in packs
        ):
            return packs
        count += 1


def deal(
    packs: Callable[[int], list[list[int]]], rank: int, ranks: int, *, at_least: int = 1
) -> list[list[int]]:
    """Return one rank's share of the micro-batches that `packs(at_least)` makes; every rank's is as long.

    Those that are computed at the same time are neighbours, so of like cost. A rank that has nothing to do while
    others do gets an empty one.
    """
    made = packs(max(at_least, ranks))
    while len(made) % ranks:
        more = packs(len(made) + ranks - len(made) % ranks)
        if len(more) <= len(made):  # There are no more sequences to make another of.
            break
        made = more
    rounds = -(-len(made) // ranks)
    made = made + [[]] * (rounds * ranks - len(made))
    return made[rank::ranks]


def _order(costs: Sequence[Cost]) -> list[int]:
    """Return positions by length, falling, each family in one piece where its longest member stands."""
    longest: dict[Hashable, int] = {}
    for cost in costs:
        longest[cost.family] = max(longest.get(cost.family, 0), cost.whole)
    first: dict[Hashable, int] = {}

    def key(position: int) -> tuple[int, int, int, int]:
        cost = costs[position]
        if cost.family is None:
            return (-cost.whole, position, 0, 0)
        opened = first.setdefault(cost.family, position)
        return (-longest[cost.family], opened, -cost.whole, position)

    return sorted(range(len(costs)), key=key)


def tokens_of(places: Sequence[int], costs: Sequence[Cost]) -> int:
    """Return how many tokens a pass of these `places` of `costs` computes."""
    families = {costs[place].family: costs[place].shared for place in places}
    alone = sum(costs[place].shared for place in places if costs[place].family is None)
    families.pop(None, None)
    return sum(costs[place].own for place in places) + sum(families.values()) + alone


def _slices(order: list[int], costs: Sequence[Cost], count: int) -> list[list[int]]:
    """Cut `order` into `count` contiguous slices, each as near as can be to its share of what is left."""
    packs: list[list[int]] = []
    left, start = tokens_of(order, costs), 0
    for slices_left in range(count, 0, -1):
        share, load, end = left / slices_left, 0, start
        seen: set[Hashable] = set()
        # Every later slice needs a sequence too.
        while end <= len(order) - slices_left:
            cost = costs[order[end]]
            known = cost.family is not None and cost.family in seen
            more = cost.own if known else cost.whole
            if end > start and load + more / 2 > share:
                break
            seen.add(cost.family)
            load, end = load + more, end + 1
        packs.append(order[start:end])
        left, start = left - load, end
    packs[-1].extend(order[start:])
    return packs
