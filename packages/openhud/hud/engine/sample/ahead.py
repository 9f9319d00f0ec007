"""Sampling ahead: several tokens of each sequence between two looks of the scheduler, where no caller needs each of them."""

from __future__ import annotations

from collections.abc import Sequence

from hud.engine.sample.prefix_cache import PrefixCache
from hud.engine.sample.request import Request


def is_watched(request: Request) -> bool:
    """Return whether a caller must process each token before the next is sampled."""
    return request.followed or request.stopped is not None


def reserve_ahead(requests: Sequence[Request], cache: PrefixCache, most: int) -> int:
    """Reserve cache positions for `most` tokens of each sequence, or for fewer; return for how many, at least 1.

    No active sequence loses its pages for that; idle ones may. A sequence that ends earlier has no more than it needs.
    """
    for request in requests:
        needed = min(most, request.most - len(request.token_ids))
        reserved = cache.grow(request.place, needed)
        most = most if reserved >= needed else reserved
    return max(1, most)
