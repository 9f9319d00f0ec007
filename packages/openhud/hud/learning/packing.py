"""Packing: sequences into micro-batches within a token budget, of nearly equal cost.

Sequences are concatenated without padding; only attention may pad, to the longest of a pass, so sequences of similar
length are packed together. Sequences with a common beginning form a tree, whose shared tokens a pass computes once: branches
of a tree are packed together, too. Packing affects memory and speed, never the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hud.learning.datums import Ids

SHARED_FROM = 16
"""Fewest tokens of a common beginning, behind those shared by more sequences, that are worth a row of a pass."""
REPEATED = 16
"""Most tokens of a pass's sequences, each with its whole beginning, over the pass's budget. Attention may copy the keys of a
beginning for each sequence, so they bound its memory."""


@dataclass(frozen=True)
class Place:
    """A sequence in the order of packing, which is a depth-first order of the trees of common beginnings."""

    number: int
    """Index of the sequence in the batch."""
    length: int
    shared: int = 0
    """Leading tokens in common with the sequence before it in the order, computed once where both are in a pass."""


def packing_order(sequences: Sequence[Ids], *, share: bool = True) -> list[Place]:
    """Return the places of sequences, trees of long ones first, and within a tree branches of long ones first."""
    ranked = list(range(len(sequences)))
    if share:
        ranked.sort(key=lambda number: _key(sequences[number]))
    ordered = [sequences[number] for number in ranked]
    lengths = np.array([len(sequence) for sequence in ordered])
    common = np.zeros(len(ordered), np.int64)
    if share:
        common[1:] = [_common(*pair) for pair in pairwise(ordered)]
    places: list[Place] = []
    # Each branch: the ranks from and up to which it reaches, tokens before it, and tokens shared with the last place.
    branches = [(0, len(ordered), 0, 0)] if ordered else []
    while branches:
        first, last, start, shared = branches.pop()
        if last - first == 1:
            places.append(Place(ranked[first], int(lengths[first]), shared))
            continue
        within = common[first + 1 : last]
        least = int(within.min())
        end = least if least - start >= SHARED_FROM else start
        cuts = [first, *(np.flatnonzero(within == least) + first + 1).tolist(), last]
        parts = sorted(pairwise(cuts), key=lambda part: -lengths[slice(*part)].max())
        branches += [(*part, end, end) for part in reversed(parts[1:])]
        branches.append((*parts[0], end, shared))
    return places


def pack(order: Sequence[Place], budget: int, *, at_least: int = 1) -> list[list[Place]]:
    """Cut a packing order into micro-batches.

    A pack has at most `budget` distinct tokens, except for a single longer sequence. `at_least` is a minimum number of packs,
    given enough sequences.
    """
    if not order:
        return []
    most_repeated = REPEATED * budget
    count = max(len(_filled(order, budget, most_repeated)), min(at_least, len(order)))
    # The smallest token limit for this number of packs, so that costs are similar.
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        if len(_filled(order, middle, most_repeated)) <= count:
            high = middle
        else:
            low = middle + 1
    packs = _filled(order, high, most_repeated)
    while len(packs) < count:
        largest = max(range(len(packs)), key=lambda number: len(packs[number]))
        half = len(packs[largest]) // 2
        packs[largest : largest + 1] = [packs[largest][:half], packs[largest][half:]]
    return packs


def deal(
    packs: Callable[[int], list[list[Place]]],
    rank: int,
    ranks: int,
    *,
    at_least: int = 1,
    at_once: int = 1,
) -> list[list[Place]]:
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


def tokens_of(places: Sequence[Place]) -> int:
    """Return the number of tokens that a pass of consecutive `places` computes."""
    total = sum(place.length - place.shared for place in places)
    return total + (places[0].shared if places else 0)


def _key(sequence: Ids) -> bytes:
    """Return bytes whose order is that of the tokens."""
    return sequence.astype(">i8").tobytes()


def _common(first: Ids, second: Ids) -> int:
    """Return the number of leading tokens that two sequences have in common."""
    length = min(len(first), len(second))
    unequal = first[:length] != second[:length]
    return int(unequal.argmax()) if unequal.any() else length


def _filled(order: Sequence[Place], most: int, most_repeated: int) -> list[list[Place]]:
    """Cut `order` into maximal slices of at most `most` distinct tokens, and `most_repeated` with repeated ones."""
    packs: list[list[Place]] = []
    load = repeated = 0
    for place in order:
        more = place.length - place.shared
        if not packs or load + more > most or repeated + place.length > most_repeated:
            packs.append([])
            load, repeated, more = 0, 0, place.length
        packs[-1].append(place)
        load += more
        repeated += place.length
    return packs
