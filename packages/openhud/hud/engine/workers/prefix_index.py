"""Prefix index: which token prefixes each sampler has in its key-value cache, for routing requests to a warm one.

Tokens are compared in blocks, by hashes that depend on all blocks before, so the cost of a lookup is independent of the
index's size. A sampler's contents are inferred from its requests; samplers are servers, and processes of this machine.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Sequence

BLOCK = 16
"""Tokens that are shared or not as a whole: the block of vLLM's prefix cache."""
MOST_BLOCKS = 1 << 16
"""Blocks remembered for each sampler: about a million tokens."""


class PrefixIndex:
    """Blocks recently sent to samplers; the least recently used are dropped. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: defaultdict[Hashable, OrderedDict[int, None]] = defaultdict(OrderedDict)

    def length(self, sampler: Hashable, hashes: Sequence[int]) -> int:
        """Return how many leading blocks a sampler has."""
        blocks = self._known[sampler]
        return next(
            (place for place, block_hash in enumerate(hashes) if block_hash not in blocks),
            len(hashes),
        )

    def remember(self, sampler: Hashable, hashes: Sequence[int]) -> None:
        """Record that a sampler has these blocks."""
        blocks = self._known[sampler]
        with self._lock:
            for block_hash in hashes:
                blocks[block_hash] = None
                blocks.move_to_end(block_hash)
            while len(blocks) > MOST_BLOCKS:
                blocks.popitem(last=False)

    def forget(self, sampler: Hashable) -> None:
        """Drop the blocks of a sampler, whose cache is empty now."""
        self._known.pop(sampler, None)

    def clear(self) -> None:
        """Drop the blocks of all samplers."""
        self._known.clear()


def block_hashes(tokens: Sequence[int]) -> list[int]:
    """Return a hash for each block, which depends on all before it; the last block may be short."""
    hashes: list[int] = []
    block_hash = 0
    for start in range(0, len(tokens), BLOCK):
        block_hash = hash((block_hash, *tokens[start : start + BLOCK]))
        hashes.append(block_hash)
    return hashes
