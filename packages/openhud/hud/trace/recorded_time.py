"""Times of steps, runs and jobs: the wall clock, without its steps back."""

from __future__ import annotations

import time
from datetime import UTC, datetime

_anchor = time.time(), time.monotonic()
"""The wall clock and the monotonic clock at the newest reading that followed the wall clock."""


def recorded_seconds() -> float:
    """Return the seconds since the epoch. After a step back of the wall clock, the monotonic clock continues them.

    Steps ahead are followed: the monotonic clock of a machine that sleeps stands still.
    """
    global _anchor
    wall, steady = time.time(), time.monotonic()
    continued = _anchor[0] + (steady - _anchor[1])
    if wall < continued:
        return continued
    _anchor = wall, steady
    return wall


def now() -> datetime:
    """Return the time, in UTC."""
    return datetime.fromtimestamp(recorded_seconds(), UTC)


def now_microseconds() -> int:
    """Return the time in microseconds since the epoch."""
    return round(recorded_seconds() * 1e6)


def microseconds(moment: datetime) -> int:
    """Return a time in microseconds since the epoch."""
    return round(moment.timestamp() * 1e6)


def seconds_between(began: datetime | None, ended: datetime | None) -> float | None:
    """Return the seconds between two times, at least 0: they may be of several machines. None if one of them is unknown."""
    if began is None or ended is None:
        return None
    return max(0.0, (ended - began).total_seconds())
