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


def seconds_between(started: datetime, ended: datetime) -> float:
    """Return the seconds between two times, at least 0: the two may come from clocks of several machines."""
    return max(0.0, (ended - started).total_seconds())
