"""Which server knows a prompt's beginning: those that follow a conversation, or play the same task, go where its keys are.

Knows tokens and loads; knows neither HTTP nor weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from hud.engine.sample.prefix_index import Beginnings, chain_of

SLACK = 16
"""Sequences by which a server may be busier than the idlest, and a quarter of that one's, before it is left alone."""

Key = TypeVar("Key", bound=Hashable)


class Affinity:
    """What servers were given lately."""

    def __init__(self) -> None:
        self._known: defaultdict[Hashable, Beginnings] = defaultdict(Beginnings)

    def choose(self, tokens: Sequence[int], loads: Mapping[Key, int]) -> Key:
        """Return the server to give `tokens` to: the one that knows most of their beginning and is not overloaded.

        `loads` holds the sequences on their way of each server that may be chosen, in a fixed order; at least one.
        """
        least = min(loads.values())
        allowed = [key for key, load in loads.items() if load <= least + least // 4 + SLACK]
        chain = chain_of(tokens)
        # Of two that know the same, the idler one.
        chosen = max(allowed, key=lambda key: (self._known[key].length(chain), -loads[key]))
        self._known[chosen].remember(chain)
        return chosen

    def remember(self, server: Hashable, tokens: Sequence[int]) -> None:
        """Write down that a server has drawn to the end of `tokens`."""
        self._known[server].remember(chain_of(tokens))

    def forget(self, server: Hashable) -> None:
        """Forget a server, whose cache is empty now."""
        self._known.pop(server, None)
