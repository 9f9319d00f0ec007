"""Rate limits of keys: requests and tokens a minute, as token buckets.
Counted in this process: each of several servers on one store grants the full limit.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import NoReturn

from hud.errors import HudError
from hud_platform.access.identity import Identity

_MOST_VISITORS = 10_000
"""Maximum number of tracked addresses; the least recently used one is dropped first."""


class TooManyRequests(HudError):
    """A key exceeded its limit; `retry_after` is in seconds."""

    status = 429

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class _Buckets:
    """Token buckets that hold a minute's limit and refill continuously; the `most` recently used ones are tracked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: float = math.inf) -> None:
        self._clock, self._most = clock, most
        self._levels: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        """Units left in each bucket, and the time of that count."""

    def _left(self, bucket: tuple[str, str], per_minute: int) -> float:
        left, then = self._levels.get(bucket, (float(per_minute), self._clock()))
        return min(float(per_minute), left + (self._clock() - then) * per_minute / 60.0)

    def _set(self, bucket: tuple[str, str], left: float) -> None:
        self._levels[bucket] = (left, self._clock())
        self._levels.move_to_end(bucket)
        if len(self._levels) > self._most:
            self._levels.popitem(last=False)


class Limits(_Buckets):
    """Buckets of all keys that have limits."""

    def admit(self, who: Identity) -> None:
        """Count a request. Raises `TooManyRequests` if the key has no requests or tokens left."""
        if who.key_id is None:
            return
        key = who.limits_id or who.key_id
        if who.tokens_per_minute is not None:
            left = self._left((key, "tokens"), who.tokens_per_minute)
            if left <= 0:
                self._refuse("tokens", who.tokens_per_minute, 1 - left)
        if who.requests_per_minute is not None:
            left = self._left((key, "requests"), who.requests_per_minute)
            if left < 1:
                self._refuse("requests", who.requests_per_minute, 1 - left)
            self._set((key, "requests"), left - 1)

    def reserve(
        self, who: Identity, least: int, most: int, *, may_exceed: bool = True
    ) -> int | None:
        """Subtract up to `most` tokens for a request that begins, as many as are left; returns how many, None without a limit.

        Raises `TooManyRequests` if fewer than `least` are left. With `may_exceed`, a request of more than the whole limit
        needs only the whole limit.
        """
        if who.key_id is None or who.tokens_per_minute is None:
            return None
        bucket = (who.limits_id or who.key_id, "tokens")
        left = self._left(bucket, who.tokens_per_minute)
        needed = max(1, min(least, who.tokens_per_minute) if may_exceed else least)
        if left < needed:
            self._refuse("tokens", who.tokens_per_minute, needed - left)
        reserved = min(most, math.floor(left))
        self._set(bucket, left - reserved)
        return reserved

    def charge(self, who: Identity, tokens: int) -> None:
        """Subtract the tokens that a request used, or give back those that it did not use (negative).

        A negative balance delays the key's next request.
        """
        if who.key_id is not None and who.tokens_per_minute is not None:
            bucket = (who.limits_id or who.key_id, "tokens")
            self._set(bucket, self._left(bucket, who.tokens_per_minute) - tokens)

    def _refuse(self, kind: str, per_minute: int, missing: float) -> NoReturn:
        raise TooManyRequests(
            f"This key may use {per_minute:,} {kind} a minute, and too few are left. Wait, or ask for a higher limit.",
            retry_after=missing * 60.0 / per_minute,
        )


class TokenBudget:
    """Tokens of one request: reserved when it begins, so that requests at once use no more than the limit; settled at its end."""

    def __init__(self, limits: Limits, who: Identity) -> None:
        self._limits, self._who = limits, who
        self._reserved = 0

    def reserve(
        self, prompt: int, stated: int | None, longest: int, choices: int = 1
    ) -> int | None:
        """Reserve the tokens of a prompt and of its `choices` answers. `stated`: each one's most tokens by the request; None: it
        states none, and `longest` are reserved for each, or as many as are left.

        Return the most tokens of each answer where the request states none; None: it states them, or the key has no limit.
        Raises `TooManyRequests`, also where fewer are left than the prompt and a token of each answer.
        """
        # A count of the caller's that is none gives no tokens.
        prompt, choices = max(0, prompt), max(1, choices)
        if stated is not None:
            tokens = prompt + max(0, stated) * choices
            self._reserved += self._limits.reserve(self._who, tokens, tokens) or 0
            return None
        least = prompt + min(1, longest) * choices
        reserved = self._limits.reserve(
            self._who, least, prompt + longest * choices, may_exceed=False
        )
        if reserved is None:
            return None
        self._reserved += reserved
        return (reserved - prompt) // choices

    def settle(self, used: int) -> None:
        """Charge the tokens that were used instead of those that were reserved."""
        reserved, self._reserved = self._reserved, 0
        self._limits.charge(self._who, used - reserved)


class Visitors(_Buckets):
    """Rate limits of requests without a key, by client address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock, _MOST_VISITORS)

    def admit(self, address: str, kind: str, per_minute: int) -> None:
        """Count a request. Raises `TooManyRequests` if its address has exceeded the limit of this kind."""
        bucket = (_network(address), kind)
        left = self._left(bucket, per_minute)
        self._set(bucket, left - 1 if left >= 1 else left)
        if left < 1:
            raise TooManyRequests(
                f"Without a key, each address may send {per_minute} such requests a minute. Wait a moment.",
                retry_after=(1 - left) * 60.0 / per_minute,
            )


def _network(address: str) -> str:
    """Return the network that counts as one client: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(ip, IPv6Address):
        return str(ip.ipv4_mapped) if ip.ipv4_mapped else ip.exploded[:19]
    return str(ip)
