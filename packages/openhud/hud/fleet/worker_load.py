"""`WorkerLoad`: counts of a worker, as its node shows them."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

EVERY_SECONDS = 2.0
"""Between two reports to the platform."""
PER_MINUTE_SECONDS = 60.0


class WorkerLoad:
    """Counts of one worker's rollouts."""

    def __init__(self) -> None:
        self.finished = self.broken = self.failures_in_a_row = 0
        self._ends: deque[float] = deque(maxlen=100_000)
        self._reported = -math.inf

    def count(self, *, broken: bool) -> None:
        """Count a rollout that ended."""
        self.finished += 1
        self.broken += broken
        self.failures_in_a_row = self.failures_in_a_row + 1 if broken else 0
        self._ends.append(time.monotonic())

    def due(self) -> bool:
        """Return whether the platform has had no report for a while."""
        return time.monotonic() - self._reported >= EVERY_SECONDS

    def report(self, running: int) -> dict[str, Any]:
        """Return the counts for the platform."""
        now = self._reported = time.monotonic()
        while self._ends and self._ends[0] < now - PER_MINUTE_SECONDS:
            self._ends.popleft()
        return {
            "running": running,
            "finished": self.finished,
            "broken": self.broken,
            "failures_in_a_row": self.failures_in_a_row,
            "per_minute": float(len(self._ends)),
        }
