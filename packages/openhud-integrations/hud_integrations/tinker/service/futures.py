"""Futures: requests that are answered at once with an id, and whose result is fetched later.

A request that is sent again under the same id by the same holder of a key joins the first one, so a retry never runs anything
twice; one with another body is refused. Results are in memory: after a restart of the server an id is unknown.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hud.errors import HudError, UsageError
from hud_platform.access.identity import Identity
from hud_platform.access.limits import TooManyRequests

PROTOBUF, JSON = "application/x-protobuf", "application/json"
POLL_SECONDS = 25.0
"""Longest wait of one poll; clients give up after 45 s."""
KEPT_SECONDS = 3600.0
"""Time for which a result is kept that nobody fetched."""
FETCHED_SECONDS = 120.0
"""Time for which a fetched result is kept, for a client that lost the response."""
MISSING_SECONDS = 600.0
"""Longest wait for an earlier request of a training client that was not received; clients try again for 300 s."""
MOST_BYTES = 256 << 20
"""Size of a team's requests that run, together, and of its results that are kept; the oldest result is dropped first."""
_OVERHEAD_BYTES = 2048
"""Memory of a request besides its body, its id and its result."""
DROP_SECONDS = 1.0
"""Interval between two removals of expired results."""

_log = logging.getLogger("hud.tinker")


@dataclass(frozen=True)
class Answer:
    """Result of a request."""

    content: bytes
    media_type: str = JSON

    @classmethod
    def of(cls, **values: Any) -> Answer:
        """Return a result as JSON."""
        return cls(json.dumps(values).encode())


@dataclass(frozen=True)
class Content:
    """Path and body of a request, by which a repeated one is recognized."""

    digest: str
    size: int
    """Bytes."""

    @classmethod
    def of(cls, path: str, body: bytes) -> Content:
        """Return the content of a request."""
        digest = hashlib.sha256(path.encode() + b"\0")
        digest.update(body)
        return cls(digest.hexdigest(), len(body))


@dataclass
class _Future:
    team: str
    key_id: str | None
    content: Content
    task: asyncio.Task[Answer]
    overhead: int
    """Bytes that it takes besides its body and its result: an idempotency key may have any length."""
    expires: float | None = None
    """Monotonic time at which the result is dropped; None while the request runs."""
    size: int = 0
    """Bytes that are counted for it: those of its body, and once it has ended those of its result."""


class Futures:
    """Requests of every holder of a key. Belongs to one event loop."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Future] = {}
        """By holder and id, oldest first."""
        self._running: Counter[str] = Counter()
        """Bytes of the requests that run, by team."""
        self._kept: Counter[str] = Counter()
        """Bytes of the results that are kept, by team."""
        self._dropped_at = 0.0

    def start(
        self,
        request_id: str,
        who: Identity,
        content: Content,
        work: Callable[[], Awaitable[Answer]],
    ) -> bool:
        """Begin a request; False if it has begun already. Raises `UsageError` for an id that was sent with another body,
        `TooManyRequests` while the team's requests that run are too large together.
        """
        self._drop_expired()
        earlier = self._known.get((who.holder, request_id))
        if earlier is not None:
            if earlier.content != content:
                raise UsageError(
                    f"The request {request_id!r} was sent before with another body or to another path; give each request a "
                    "number or an idempotency key of its own."
                )
            return False
        team, overhead = who.team_id, _OVERHEAD_BYTES + sys.getsizeof(request_id)
        size = overhead + content.size
        if self._running[team] and self._running[team] + size > MOST_BYTES:
            raise TooManyRequests(
                f"Your team's requests that run are {MOST_BYTES >> 20} MiB already. Wait for some of them.",
                1.0,
            )
        task = asyncio.create_task(_answered(work))
        future = self._known[who.holder, request_id] = _Future(
            team, who.key_id, content, task, overhead, size=size
        )
        self._running[team] += size
        task.add_done_callback(lambda _: self._keep(future))
        return True

    def _keep(self, future: _Future) -> None:
        """Keep the result of a request that ended, and drop the team's oldest results where all are too large together."""
        team, task = future.team, future.task
        self._running[team] -= future.size
        future.size = future.overhead + (0 if task.cancelled() else len(task.result().content))
        future.expires = time.monotonic() + KEPT_SECONDS
        self._kept[team] += future.size
        if self._kept[team] <= MOST_BYTES:
            return
        ended = [
            key
            for key, other in self._known.items()
            if other.team == team and other.expires is not None and other is not future
        ]
        for key in ended:
            if self._kept[team] <= MOST_BYTES:
                break
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        future = self._known.pop(key)
        self._kept[future.team] -= future.size

    def knows(self, request_id: str, who: Identity) -> bool:
        """True for a request of the holder that runs, or whose result is kept."""
        key = who.holder, request_id
        future = self._known.get(key)
        if future is not None and future.expires is not None and future.expires <= time.monotonic():
            self._drop(key)
            return False
        return future is not None

    async def wait(self, request_id: str, who: Identity) -> Answer | None:
        """Return the result of a known request; None if it takes longer than a poll."""
        future = self._known[who.holder, request_id]
        await asyncio.wait({future.task}, timeout=POLL_SECONDS)
        if not future.task.done():
            return None
        if future.task.cancelled():
            return Answer.of(error="The request was cancelled.", category="user")
        future.expires = time.monotonic() + FETCHED_SECONDS
        return future.task.result()

    def cancel(self, request_id: str, who: Identity) -> None:
        """Cancel a known request."""
        self._known[who.holder, request_id].task.cancel()

    def sampling_keys(self) -> set[str]:
        """Return the ids of the keys whose sampling requests run."""
        return {future.key_id for future in self._sampling() if future.key_id is not None}

    def cancel_sampling(self, key_id: str) -> None:
        """Cancel the sampling requests of a key."""
        for future in self._sampling():
            if future.key_id == key_id:
                future.task.cancel()

    def _sampling(self) -> list[_Future]:
        return [
            future
            for (_, request_id), future in self._known.items()
            if is_sampling(request_id) and not future.task.done()
        ]

    async def close(self) -> None:
        """Cancel every request that runs."""
        tasks = [future.task for future in self._known.values() if not future.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop_expired(self) -> None:
        now = time.monotonic()
        if now < self._dropped_at + DROP_SECONDS:
            return  # Thousands of results are kept: not all are looked at with each request.
        self._dropped_at = now
        late = [
            key for key, future in self._known.items() if future.expires and future.expires < now
        ]
        for key in late:
            self._drop(key)


def is_sampling(request_id: str) -> bool:
    """True for the id of a sampling request."""
    return ":sample:" in f":{request_id}"


async def _answered(work: Callable[[], Awaitable[Answer]]) -> Answer:
    """Return the result of `work`, or its error as clients read it."""
    try:
        return await work()
    except UsageError as error:
        return Answer.of(error=str(error), category="user")
    except HudError as error:
        return Answer.of(error=str(error), category="user" if error.status < 500 else "server")
    except Exception as error:
        _log.exception("A request of Tinker's API failed.")
        sentence = (
            f"The request failed in the server ({type(error).__name__}). See the server's log."
        )
        return Answer.of(error=sentence, category="server")


class Turns:
    """Numbers of one client's requests, which run one after the other in their order, whatever order they arrive in."""

    def __init__(self) -> None:
        self._next = 1
        self._waiting: dict[int, asyncio.Event] = {}
        self._running = False
        self._ended_at = 0.0
        """Monotonic time at which the last request ended."""

    def passed(self, number: int) -> bool:
        """True if the request of this number has run, or runs."""
        return number < self._next

    async def take(self, number: int, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the result of `work`, begun when all requests before it have ended.

        Raises `UsageError` if one of them was not received within `MISSING_SECONDS`, or if later ones gave up this one.
        """
        await self._wait(number)
        due = self._next
        if due > number:
            raise UsageError(
                f"Request {number} of this training client came so late that request {due - 1} did not wait for it."
            )
        try:
            if due < number:
                raise UsageError(
                    f"Request {due} of this training client was not received, and request {number} comes after it."
                )
            self._running = True
            return await work()
        finally:
            self._running = False
            self._ended_at = time.monotonic()
            self._next = number + 1
            for waiting, event in self._waiting.items():
                # Below: a request that came so late that this one did not wait for it.
                if waiting <= self._next:
                    event.set()

    async def _wait(self, number: int) -> None:
        """Wait for the turn of a number, or until nothing has run or arrived for too long."""
        event = self._waiting.setdefault(number, asyncio.Event())
        came = time.monotonic()
        try:
            while number > self._next:
                since = time.monotonic() if self._running else max(came, self._ended_at)
                left = since + MISSING_SECONDS - time.monotonic()
                if left <= 0:
                    break
                with suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), left)
        finally:
            del self._waiting[number]
