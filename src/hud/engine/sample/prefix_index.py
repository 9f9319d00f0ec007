"""Which beginnings of prompts somebody computed lately: whoever knows one need not compute it again.

Tokens are compared in blocks, each by a number that depends on all before it, so that a look costs the same however much is
known. Knows tokens alone: a server of vLLM's and a sampler in this machine are known by what they were given.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

BLOCK = 16
"""Tokens that are shared or not as a whole: the block of vLLM's prefix cache."""
MOST_BLOCKS = 1 << 16
"""Blocks that are remembered: about a million tokens."""


class Beginnings:
    """What somebody was given lately, as chains of blocks. Any thread may ask, and tell."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[int, None] = OrderedDict()

    def length(self, chain: Sequence[int]) -> int:
        """Return how many leading blocks of a chain are known."""
        known = self._known
        return next((place for place, link in enumerate(chain) if link not in known), len(chain))

    def remember(self, chain: Sequence[int]) -> None:
        """Write down that it was given a chain; what was heard of longest ago is forgotten."""
        known = self._known
        with self._lock:
            for link in chain:
                known[link] = None
                known.move_to_end(link)
            while len(known) > MOST_BLOCKS:
                known.popitem(last=False)


def chain_of(tokens: Sequence[int]) -> list[int]:
    """Return a number for each block, which depends on all before it; a last block may be short."""
    chain: list[int] = []
    link = 0
    for start in range(0, len(tokens), BLOCK):
        link = hash((link, *tokens[start : start + BLOCK]))
        chain.append(link)
    return chain
