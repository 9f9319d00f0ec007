"""Limits of keys: requests and tokens a minute, as buckets that fill steadily.

Counted in this process: several servers on one store each grant the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hud.errors import HudError
from hud.platform.access.identity import Identity


class TooManyRequests(HudError):
    """A key asked for more than its limit; `retry_after` is in seconds."""

    status = 429

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Limits:
    """Buckets of all keys that have limits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._levels: dict[tuple[str, str], tuple[float, float]] = {}
        """What is left in a bucket, and when that was true."""

    def admit(self, who: Identity) -> None:
        """Count a request; raises `TooManyRequests` where the key has none, or no tokens, left."""
        if who.key_id is None:
            return
        if who.tokens_per_minute is not None:
            left = self._level(who.key_id, "tokens", who.tokens_per_minute)
            if left <= 0:
                self._refuse("tokens", who.tokens_per_minute, 1 - left)
        if who.requests_per_minute is not None:
            left = self._level(who.key_id, "requests", who.requests_per_minute)
            if left < 1:
                self._refuse("requests", who.requests_per_minute, 1 - left)
            self._levels[who.key_id, "requests"] = (left - 1, self._clock())

    def charge(self, who: Identity, tokens: int) -> None:
        """Take tokens that a request cost; what it owes delays the key's next request."""
        if who.key_id is not None and who.tokens_per_minute is not None:
            left = self._level(who.key_id, "tokens", who.tokens_per_minute)
            self._levels[who.key_id, "tokens"] = (left - tokens, self._clock())

    def _level(self, key_id: str, kind: str, per_minute: int) -> float:
        left, then = self._levels.get((key_id, kind), (float(per_minute), self._clock()))
        return min(float(per_minute), left + (self._clock() - then) * per_minute / 60.0)

    def _refuse(self, kind: str, per_minute: int, missing: float) -> None:
        raise TooManyRequests(
            f"This key may use {per_minute:,} {kind} a minute, and has used them. Wait, or ask for a higher limit.",
            retry_after=missing * 60.0 / per_minute,
        )
