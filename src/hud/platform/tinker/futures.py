"""Futures: requests that are answered at once with an id, and whose result is fetched later.

A request that is sent again under the same id joins the first one, so a retry never runs anything twice. Results are in
memory: after a restart of the server an id is unknown.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hud.errors import HudError, UsageError

PROTOBUF, JSON = "application/x-protobuf", "application/json"
POLL_SECONDS = 25.0
"""Longest wait of one poll; clients give up after 45 s."""
KEPT_SECONDS = 3600.0
"""Time for which a result is kept that nobody fetched."""
FETCHED_SECONDS = 120.0
"""Time for which a fetched result is kept, for a client that lost the response."""
MISSING_SECONDS = 600.0
"""Longest wait for an earlier request of a training client that was not received; clients try again for 300 s."""
DROP_SECONDS = 1.0
"""Interval between two removals of expired results."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """Result of a request."""

    content: bytes
    media_type: str = JSON

    @classmethod
    def of(cls, **values: Any) -> Answer:
        """Return a result as JSON."""
        return cls(json.dumps(values).encode())


@dataclass
class _Future:
    team: str
    task: asyncio.Task[Answer]
    expires: float | None = None
    """Monotonic time at which the result is dropped; None while the request runs."""


class Futures:
    """Requests of every team. Belongs to one event loop."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Future] = OrderedDict()
        self._dropped_at = 0.0

    def start(self, request_id: str, team: str, work: Callable[[], Awaitable[Answer]]) -> bool:
        """Begin a request; False if it has begun already. Raises `UsageError` for an id of another team."""
        self._drop_expired()
        known = self._known.get(request_id)
        if known is not None:
            if known.team != team:
                raise UsageError(f"The request {request_id!r} belongs to another session.")
            return False
        task = asyncio.create_task(_answered(work))
        found = self._known[request_id] = _Future(team, task)

        def end(_: object) -> None:
            found.expires = time.monotonic() + KEPT_SECONDS

        task.add_done_callback(end)
        return True

    def knows(self, request_id: str, team: str) -> bool:
        """True for a request of the team that runs, or whose result is kept."""
        found = self._known.get(request_id)
        if found is not None and found.expires is not None and found.expires <= time.monotonic():
            del self._known[request_id]
            return False
        return found is not None and found.team == team

    async def wait(self, request_id: str) -> Answer | None:
        """Return the result of a known request; None if it takes longer than a poll."""
        found = self._known[request_id]
        await asyncio.wait({found.task}, timeout=POLL_SECONDS)
        if not found.task.done():
            return None
        if found.task.cancelled():
            return Answer.of(error="The request was cancelled.", category="user")
        found.expires = time.monotonic() + FETCHED_SECONDS
        return found.task.result()

    def cancel(self, request_id: str) -> None:
        """Cancel a known request."""
        self._known[request_id].task.cancel()

    async def close(self) -> None:
        """Cancel every request that runs."""
        tasks = [one.task for one in self._known.values() if not one.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop_expired(self) -> None:
        now = time.monotonic()
        if now < self._dropped_at + DROP_SECONDS:
            return  # Thousands of results are kept: not all are looked at with each request.
        self._dropped_at = now
        late = [key for key, one in self._known.items() if one.expires and one.expires < now]
        for key in late:
            del self._known[key]


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
            if self._next in self._waiting:
                self._waiting[self._next].set()

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
