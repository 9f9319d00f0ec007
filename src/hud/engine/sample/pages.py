"""Reference counts of the key-value cache's pages.

Slots with a common prefix share pages. Pages of active sequences are pinned; all others may be evicted.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class Pages:
    """Reference counts of `count` pages; the lowest free one is taken first."""

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
        """Pages in some slot, of active sequences or not."""
        return self.count - len(self._free)

    @property
    def available(self) -> int:
        """Pages that are not pinned."""
        return self.count - self._pinned

    def users(self, page: int) -> int:
        """Return the number of references to a page."""
        return self._users[page]

    def pinned(self, page: int) -> bool:
        """Return True while an active sequence needs the page."""
        return self._pins[page] > 0

    def take(self) -> int:
        """Return a free page, with one reference to it now. Raises `IndexError` where none is free."""
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
        """Protect a referenced page from eviction."""
        assert self._users[page] > self._pins[page], f"page {page} is not held"
        self._pins[page] += 1
        self._pinned += self._pins[page] == 1

    def unpin(self, page: int) -> None:
        """Take back one `pin`."""
        assert self._pins[page] > 0, f"page {page} is not pinned"
        self._pins[page] -= 1
        self._pinned -= self._pins[page] == 0
