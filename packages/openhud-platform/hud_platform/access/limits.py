"""Rate limits: requests and tokens a minute, as token buckets. Those of keys are in the store, so that all its servers grant them
once; those of visitors without a key are each server's own.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from ipaddress import IPv6Address, ip_address
from typing import NoReturn

import sqlalchemy as sa

from hud.errors import HudError, StoreError
from hud.trace.recorded_time import microseconds
from hud_platform.access.identity import Identity
from hud_platform.store import Store, tables
from hud_platform.store.ingest import upsert

_log = logging.getLogger("hud.platform")

_MINUTE = 60.0
_MOST_VISITORS = 10_000
"""Maximum number of tracked addresses; the least recently used one is dropped first."""


class TooManyRequests(HudError):
    """A key exceeded its limit; `retry_after` is in seconds."""

    status = 429

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Limits:
    """Buckets of all keys that have limits. Each holds a minute's limit and refills continuously: what a server that died had reserved
    is back within a minute. Methods block, and use no query for a key without limits.
    """

    def __init__(self, store: Store, clock: Callable[[], datetime] | None = None) -> None:
        self._store = store
        self._now = store.clock.now if clock is None else clock

    async def count(self, who: Identity) -> None:
        """Count a request off the event loop, as `admit` does."""
        if who.is_limited:
            await asyncio.to_thread(self.admit, who)

    def admit(self, who: Identity) -> None:
        """Count a request. Raises `TooManyRequests` if the key has no requests or tokens left."""
        if not who.is_limited:
            return
        with self._store.begin() as connection:
            for key_id, _, most in who.limits:
                if (
                    most is not None
                    and (left := self._left(connection, key_id, "tokens", most)) <= 0
                ):
                    _refuse("tokens", most, 1 - left)
            levels: dict[str, float] = {}
            for key_id, most, _ in who.limits:
                if most is not None:
                    levels[key_id] = left = self._left(connection, key_id, "requests", most)
                    if left < 1:
                        _refuse("requests", most, 1 - left)
            for key_id, left in levels.items():
                self._set(connection, key_id, "requests", left - 1)

    def reserve(
        self, who: Identity, least: int, most: int, *, may_exceed: bool = True
    ) -> int | None:
        """Subtract up to `most` tokens for a request that begins, as many as are left; returns how many, None without a limit.

        Raises `TooManyRequests` if fewer than `least` are left. With `may_exceed`, a request of more than the whole limit
        needs only the whole limit.
        """
        if who.tokens_per_minute is None or not who.is_limited:
            return None
        levels: dict[str, float] = {}
        with self._store.begin() as connection:
            for key_id, _, limit in who.limits:
                if limit is not None:
                    levels[key_id] = left = self._left(connection, key_id, "tokens", limit)
                    needed = max(1, min(least, limit) if may_exceed else least)
                    if left < needed:
                        _refuse("tokens", limit, needed - left)
            reserved = min(most, *map(math.floor, levels.values()))
            for key_id, left in levels.items():
                self._set(connection, key_id, "tokens", left - reserved)
        return reserved

    def charge(self, who: Identity, tokens: int) -> None:
        """Subtract the tokens that a request used, or give back those that it did not use (negative).

        A negative balance delays the key's next request.
        """
        if who.tokens_per_minute is None or not who.is_limited or tokens == 0:
            return
        with self._store.begin() as connection:
            for key_id, _, limit in who.limits:
                if limit is not None:
                    left = self._left(connection, key_id, "tokens", limit)
                    self._set(connection, key_id, "tokens", left - tokens)

    def _left(self, connection: sa.Connection, key_id: str, kind: str, per_minute: int) -> float:
        """Return what is left of a limit, and lock it until the transaction's end."""
        levels, bucket = tables.limit_levels, {"key_id": key_id, "kind": kind}
        query = sa.select(levels.c.level, levels.c.counted_at).where(*_is(key_id, kind))
        row = connection.execute(query.with_for_update()).one_or_none()
        if row is None:
            full = {**bucket, "level": per_minute, "counted_at": microseconds(self._now())}
            upsert(connection, levels, [full])
            row = connection.execute(query.with_for_update()).one()
        seconds = (self._now() - row.counted_at).total_seconds()
        # The clock of another server's machine may be ahead. Much later, the date is of a clock that was set back since: no
        # request waits until it comes.
        seconds = _MINUTE if seconds < -_MINUTE else max(0.0, seconds)
        return _refilled(row.level, seconds, per_minute)

    def _set(self, connection: sa.Connection, key_id: str, kind: str, left: float) -> None:
        levels = tables.limit_levels
        update = sa.update(levels).where(*_is(key_id, kind))
        connection.execute(update.values(level=left, counted_at=self._now()))


def _is(key_id: str, kind: str) -> list[sa.ColumnElement[bool]]:
    levels = tables.limit_levels
    return [levels.c.key_id == key_id, levels.c.kind == kind]


def _refilled(left: float, seconds: float, per_minute: int) -> float:
    """Return what is left in a bucket after it was refilled for some seconds."""
    return min(float(per_minute), left + seconds * per_minute / _MINUTE)


def _refuse(kind: str, per_minute: int, missing: float) -> NoReturn:
    raise TooManyRequests(
        f"This key may use {per_minute:,} {kind} a minute, and too few are left. Wait, or ask for a higher limit.",
        retry_after=missing * _MINUTE / per_minute,
    )


class TokenBudget:
    """Tokens of one request: reserved when it begins, so that requests at once use no more than the limit; settled at its end."""

    def __init__(self, limits: Limits, who: Identity) -> None:
        self._limits, self._who = limits, who
        self._reserved = 0

    async def reserve(
        self, prompt: int, stated: int | None, longest: int, choices: int = 1
    ) -> int | None:
        """Reserve the tokens of a prompt and of its `choices` answers. `stated`: each one's most tokens by the request; None: it
        states none, and `longest` are reserved for each, or as many as are left.

        Return the most tokens of each answer where the request states none; None: it states them, or the key has no limit.
        Raises `TooManyRequests`, also where fewer are left than the prompt and a token of each answer.
        """
        if self._who.tokens_per_minute is None:
            return None
        # A count of the caller's that is none gives no tokens.
        prompt, choices = max(0, prompt), max(1, choices)
        if stated is not None:
            tokens = prompt + max(0, stated) * choices
            await asyncio.to_thread(self._reserve, tokens, tokens, True)
            return None
        least = prompt + min(1, longest) * choices
        most = prompt + longest * choices
        reserved = await asyncio.to_thread(self._reserve, least, most, False)
        return None if reserved is None else (reserved - prompt) // choices

    def _reserve(self, least: int, most: int, may_exceed: bool) -> int | None:
        reserved = self._limits.reserve(self._who, least, most, may_exceed=may_exceed)
        self._reserved += reserved or 0
        return reserved

    async def settle(self, used: int) -> None:
        """Charge the tokens that were used instead of those that were reserved."""
        reserved, self._reserved = self._reserved, 0
        if self._who.tokens_per_minute is None or used == reserved:
            return
        charged = asyncio.to_thread(self._limits.charge, self._who, used - reserved)
        try:
            await asyncio.shield(asyncio.ensure_future(charged))
        except StoreError as error:
            _log.warning("%d tokens of a key could not be charged: %s", used - reserved, error)


class Visitors:
    """Rate limits of requests without a key, by client address; the most recently used ones are tracked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._levels: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        """Units left in each bucket, and the time of that count."""

    def admit(self, address: str, kind: str, per_minute: int) -> None:
        """Count a request. Raises `TooManyRequests` if its address has exceeded the limit of this kind."""
        bucket, now = (_network(address), kind), self._clock()
        left, then = self._levels.get(bucket, (float(per_minute), now))
        left = _refilled(left, now - then, per_minute)
        self._levels[bucket] = (left - 1 if left >= 1 else left, now)
        self._levels.move_to_end(bucket)
        if len(self._levels) > _MOST_VISITORS:
            self._levels.popitem(last=False)
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
