"""Dates that follow no jump of a machine's wall clock: of this process, and of all servers of one database.

For what is compared with an earlier date: leases, passes, signs of life. Dates that people set, such as the expiry of a key,
follow the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

READ_SECONDS = 60.0
"""Age at which a reading of the database's clock is taken anew."""
_WALL, _MONOTONIC = time.time(), time.monotonic()


def steady_time() -> float:
    """Return seconds since the epoch: the wall clock at the process's start, continued by the monotonic clock."""
    return _WALL + (time.monotonic() - _MONOTONIC)


class StoreClock:
    """The database's clock where it has one, continued by the monotonic clock; else `steady_time`."""

    def __init__(self, read: Callable[[], datetime] | None) -> None:
        self._read = read
        self._reading: tuple[datetime, float] | None = None
        """A date, and the monotonic clock at that moment."""

    def now(self) -> datetime:
        """Return the date, in UTC. Raises `StoreAwayError` where a database does not answer."""
        if self._read is None:
            return datetime.fromtimestamp(steady_time(), UTC)
        here = time.monotonic()
        if self._reading is None or here - self._reading[1] > READ_SECONDS:
            self._reading = (self._read(), here)
        date, then = self._reading
        return date + timedelta(seconds=here - then)
