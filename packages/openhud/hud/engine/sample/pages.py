"""Reference counts of the key-value cache's pages.

Slots with a common prefix share pages. Pages of active sequences are pinned; all others may be evicted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True)
class PageGrowth:
    """Pages that take memory when they are first used."""

    first: int
    """Pages that idle slots may fill."""
    least: int
    """Pages that active sequences always get: those of one context."""
    grows: Callable[[int], bool]
    """Returns whether active sequences may use so many pages more."""


class Pages:
    """Reference counts of `count` pages; the lowest free one is taken first."""

    def __init__(self, count: int, growth: PageGrowth | None = None) -> None:
        """`growth` None: all pages may be used at once."""
        self.count = count
        self._growth = growth
        self.usable = count if growth is None else min(growth.first, count)
        """Pages that may be used; those behind them take no memory yet."""
        self.free = list(range(self.usable))
        """Pages in no slot, as a heap."""
        self.users = [0] * count
        """References to each page."""
        self.pins = [0] * count
        """Active sequences that need each page."""
        self._pinned = 0
        self.most_in_use = 0
        """High-water mark of `in_use`."""

    @property
    def in_use(self) -> int:
        """Pages in some slot, of active sequences or not."""
        return self.usable - len(self.free)

    @property
    def available(self) -> int:
        """Pages that are not pinned."""
        return self.usable - self._pinned

    def provide(self, wanted: int) -> bool:
        """Return whether `wanted` pages are available, after making more usable if they are not."""
        missing = wanted - self.available
        if missing <= 0:
            return True
        if self._growth is None or self.usable + missing > self.count:
            return False
        least = self.usable + missing <= self._growth.least
        if not least and not self._growth.grows(missing):
            return False
        for page in range(self.usable, self.usable + missing):
            heappush(self.free, page)
        self.usable += missing
        return True

    def take(self) -> int:
        """Return a free page, with one reference to it now. Raises `IndexError` if none is free."""
        page = heappop(self.free)
        self.users[page] = 1
        self.most_in_use = max(self.most_in_use, self.in_use)
        return page

    def share(self, page: int) -> None:
        """Add a reference to a page in use."""
        assert self.users[page] > 0, f"page {page} is free"
        self.users[page] += 1

    def release(self, page: int) -> None:
        """Drop a reference; the last one frees the page."""
        assert self.users[page] > self.pins[page], f"page {page} is needed"
        self.users[page] -= 1
        if not self.users[page]:
            heappush(self.free, page)

    def pin(self, page: int) -> None:
        """Protect a referenced page from eviction."""
        assert self.users[page] > self.pins[page], f"page {page} is not held"
        self.pins[page] += 1
        self._pinned += self.pins[page] == 1

    def unpin(self, page: int) -> None:
        """Take back one `pin`."""
        assert self.pins[page] > 0, f"page {page} is not pinned"
        self.pins[page] -= 1
        self._pinned -= self.pins[page] == 0
