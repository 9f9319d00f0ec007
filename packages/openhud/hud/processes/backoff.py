"""Exponential backoff: the pause before a failed operation is tried again."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Pauses that double with each failure in a row."""

    first_seconds: float
    """Pause after the first failure."""
    longest_seconds: float = math.inf
    spread: float = 0.0
    """Share, from 0 to 1, by which a pause is longer or shorter at random: callers that failed together come back apart."""

    def seconds(self, failures: int) -> float:
        """Return the pause after that many failures in a row, from 1."""
        doublings = min(failures - 1, 64)  # A float has no room for thousands.
        pause = self.first_seconds * 2.0**doublings
        return min(pause * random.uniform(1 - self.spread, 1 + self.spread), self.longest_seconds)
