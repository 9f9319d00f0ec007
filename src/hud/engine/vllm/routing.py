"""Which server knows a prompt's beginning: those that follow a conversation, or play the same task, go where its keys are.

Knows tokens and loads; knows neither HTTP nor weights.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

BLOCK = 16
"""Tokens that are shared or not as a whole: the block of vLLM's prefix cache."""
MOST_BLOCKS = 1 << 16
"""Blocks that are remembered of each server: about a million tokens."""
SLACK = 16
"""Sequences by which a server may be busier than the idlest, and a quarter of that one's, before it is left alone."""

Key = TypeVar("Key", bound=Hashable)


class Affinity:
    """What servers were given lately, as chains of blocks."""

    def __init__(self) -> None:
        self._known: dict[Hashable, OrderedDict[int, None]] = {}

    def choose(self, tokens: Sequence[int], loads: Mapping[Key, int]) -> Key:
        """Return the server to give `tokens` to: the one that knows most of their beginning and is not overloaded.

        `loads` holds the sequences on their way of each server that may be chosen, in a fixed order; at least one.
        """
        least = min(loads.values())
        allowed = [key for key, load in loads.items() if load <= least + least // 4 + SLACK]
        chain = _chain(tokens)
        # Of two that know the same, the idler one.
        chosen = max(allowed, key=lambda key: (self._length(key, chain), -loads[key]))
        self._remember(chosen, chain)
        return chosen

    def remember(self, server: Hashable, tokens: Sequence[int]) -> None:
        """Write down that a server has drawn to the end of `tokens`."""
        self._remember(server, _chain(tokens))

    def forget(self, server: Hashable) -> None:
        """Forget a server, whose cache is empty now."""
        self._known.pop(server, None)

    def _length(self, server: Hashable, chain: list[int]) -> int:
        known = self._known.get(server, ())
        return next((place for place, link in enumerate(chain) if link not in known), len(chain))

    def _remember(self, server: Hashable, chain: list[int]) -> None:
        known = self._known.setdefault(server, OrderedDict())
        for link in chain:
            known[link] = None
            known.move_to_end(link)
        while len(known) > MOST_BLOCKS:
            known.popitem(last=False)


def _chain(tokens: Sequence[int]) -> list[int]:
    """Return a number for each block, which depends on all before it; a last block may be short."""
    chain: list[int] = []
    link = 0
    for start in range(0, len(tokens), BLOCK):
        link = hash((link, *tokens[start : start + BLOCK]))
        chain.append(link)
    return chain
