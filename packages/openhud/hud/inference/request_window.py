"""`RequestWindow`: number of requests in flight to one model, adapted to its server's rate limits.

Additive increase, multiplicative decrease, as TCP's congestion window (Chiu and Jain 1989; Jacobson 1988), with CUBIC's
factor of decrease (RFC 9438). Processes that share a limit without knowing of each other converge to equal shares. Knows
requests and refusals; independent of dialects and of retries.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from weakref import WeakKeyDictionary

SHRINK = 0.7
"""Factor of the number in flight when the server refuses one."""
LONGEST_PAUSE_SECONDS = 30.0
_BUCKET = re.compile(
    r"ratelimit-(?:requests-(limit|remaining|reset)|(limit|remaining|reset)-requests)$"
)
"""Headers of a server's bucket of requests: `x-ratelimit-remaining-requests`, or a provider's `...-ratelimit-requests-remaining`."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_windows: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], RequestWindow]]
_windows = WeakKeyDictionary()


class Slot:
    """A request's place among those in flight."""

    def __init__(self, window: RequestWindow) -> None:
        self._window = window
        self._decreases = window.decreases

    def answered(self) -> None:
        """Count an answer: the number in flight grows by one in each round of answers, while requests wait for room.

        It does not grow where they wait for a rate.
        """
        window = self._window
        window.answers += 1
        if window.waiting and not window.is_paused and self._decreases == window.decreases:
            window.limit += 1 / window.limit

    def refused(self, pause: float | None = None) -> None:
        """Shrink the number in flight, once for all requests that were sent together, and send none for `pause` seconds."""
        window = self._window
        window.refusals += 1
        if self._decreases == window.decreases:
            window.decreases += 1
            window.limit = max(1.0, min(window.limit, window.in_flight) * SHRINK)
        if pause is not None:
            window.pause(pause)


class RequestWindow:
    """Requests to one model by this process; without a limit until its server refuses one.

    The limit stays between 1 and the most requests that there were at a time.
    """

    def __init__(self) -> None:
        self.limit = math.inf
        """Most requests in flight; its integral part is in force."""
        self.in_flight = self.answers = self.refusals = self.decreases = 0
        self._turns: deque[asyncio.Future[None]] = deque()
        self._opens_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a slot."""
        return len(self._turns)

    @property
    def is_paused(self) -> bool:
        """True while nothing is sent."""
        return asyncio.get_running_loop().time() < self._opens_at

    @property
    def crowded(self) -> bool:
        """True while as many requests wait as may be in flight: more rollouts would only wait longer."""
        return self.waiting >= self.limit

    @asynccontextmanager
    async def slot(self, *, again: bool = False) -> AsyncIterator[Slot]:
        """Wait for a place among the requests in flight; a request that is sent `again` goes first."""
        await self._enter(again)
        try:
            yield Slot(self)
        finally:
            self.in_flight -= 1
            self._admit()

    def pause(self, seconds: float) -> None:
        """Send nothing for this time, at most `LONGEST_PAUSE_SECONDS`."""
        now = asyncio.get_running_loop().time()
        self._opens_at = max(self._opens_at, now + min(seconds, LONGEST_PAUSE_SECONDS))

    def heed(self, headers: Mapping[str, str]) -> None:
        """Pause where the headers of an answer say that the bucket of requests is empty, until the next one is due.

        A bucket refills evenly: `reset` seconds for all that it lacks.
        """
        bucket = {
            match[1] or match[2]: value
            for name, value in headers.items()
            if "ratelimit" in name and (match := _BUCKET.search(name)) is not None
        }
        if bucket.keys() < {"limit", "remaining", "reset"}:
            return
        with suppress(ValueError):
            if int(bucket["remaining"]) <= 0 < int(bucket["limit"]):
                self.pause(seconds_until(bucket["reset"]) / int(bucket["limit"]))

    async def _enter(self, again: bool) -> None:
        if not self._turns and self._has_room():
            self.in_flight += 1
            return
        turn = asyncio.get_running_loop().create_future()
        if again:
            self._turns.appendleft(turn)
        else:
            self._turns.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):
                    self._turns.remove(turn)
            else:
                self.in_flight -= 1
            self._admit()
            raise

    def _has_room(self) -> bool:
        return self.in_flight <= self.limit - 1 and not self.is_paused

    def _admit(self) -> None:
        """Let those that wait longest go, as far as there is room."""
        while self._turns and self._has_room():
            turn = self._turns.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)
        if self._turns and self._timer is None and self.is_paused:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._opens_at, self._reopen)

    def _reopen(self) -> None:
        self._timer = None
        self._admit()


def seconds_until(reset: str) -> float:
    """Return the seconds of a duration (`6m0s`, `120ms`, `1.5`) or until a date (RFC 3339). Raises `ValueError`."""
    parts = _DURATION.findall(reset)
    if parts and "".join(number + unit for number, unit in parts) == reset:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    try:
        seconds = float(reset)
    except ValueError:
        date = datetime.fromisoformat(reset)
        date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        seconds = (date - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def window_of(url: str, model: str) -> RequestWindow:
    """Return the window of a model's requests, shared by all agents of this event loop; each rollout may have a key of its own."""
    windows = _windows.setdefault(asyncio.get_running_loop(), {})
    return windows.setdefault((url, model), RequestWindow())


def limited_windows() -> dict[str, RequestWindow]:
    """Return this event loop's windows with a limit in force, by model."""
    windows = _windows.get(asyncio.get_running_loop(), {})
    return {model: window for (_, model), window in windows.items() if window.refusals}
