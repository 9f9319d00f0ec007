"""Which pages of the key-value cache are in use, and by how many.

A page may be in several slots at once: those that begin with the same tokens share it. What sequences on their
way need is pinned; everything else may be evicted.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class Pages:
    """Reference counts of `count` pages. The lowest free one is given out first, so that those in use stay together."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        heapify(self._free)
        self._users = [0] * count
        self._pins = [0] * count
        self._pinned = 0
        self.most_in_use = 0
        """High-water mark of `in_use`."""

    @property
    def free(self) -> int:
        """Pages in no slot."""
        return len(self._free)

    @property
    def in_use(self) -> int:
        """Pages that some slot holds, of sequences on their way or not."""
        return self.count - len(self._free)

    @property
    def available(self) -> int:
        """Pages that are free, or would be once everything was evicted that is not pinned."""
        return self.count - self._pinned

    def users(self, page: int) -> int:
        """Return how many references a page has."""
        return self._users[page]

    def pinned(self, page: int) -> bool:
        """Return True while a sequence on its way needs the page."""
        return self._pins[page] > 0

    def take(self) -> int:
        """Return a page that was free, with one reference to it. Raises `IndexError` where none is."""
        page = heappop(self._free)
        self._users[page] = 1
        self.most_in_use = max(self.most_in_use, self.in_use)
        return page

    def share(self, page: int) -> None:
        """Add a reference to a page in use."""
        assert self._users[page] > 0, f"page {page} is free"
        self._users[page] += 1

    def release(self, page: int) -> None:
        """Drop a reference; the last one frees the page."""
        assert self._users[page] > self._pins[page], f"page {page} is needed"
        self._users[page] -= 1
        if not self._users[page]:
            heappush(self._free, page)

    def pin(self, page: int) -> None:
        """Keep a page, to which there is a reference, from being evicted."""
        assert self._users[page] > self._pins[page], f"page {page} is not held"
        self._pins[page] += 1
        self._pinned += self._pins[page] == 1

    def unpin(self, page: int) -> None:
        """Take back one `pin`."""
        assert self._pins[page] > 0, f"page {page} is not pinned"
        self._pins[page] -= 1
        self._pinned -= self._pins[page] == 0
