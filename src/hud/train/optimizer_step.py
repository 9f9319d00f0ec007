"""One update of the weights, taken exactly once, also where whoever trains dies in the middle of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from hud.errors import ConflictError, PlatformError

ATTEMPTS = 8
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 15.0
_PASSING = (502, 503, 504)

Answer = TypeVar("Answer")


class Update:
    """A batch that is accumulated, in one part or several, and then applied.

    Calls are repeated where the platform is away for a while, so each must carry an idempotency key. A gradient that died
    with its engine is missed by the platform, which says so once (`ConflictError`); every part is then sent again.
    """

    def __init__(self) -> None:
        self._parts: list[Callable[[], Awaitable[Any]]] = []
        self._sent = 0

    async def add(self, part: Callable[[], Awaitable[Any]]) -> None:
        """Accumulate a part of the batch."""
        self._parts.append(part)
        await self._insist(self._send)

    async def apply(self, optim_step: Callable[[], Awaitable[Answer]]) -> Answer:
        """Apply what was accumulated; returns what that answered."""

        async def work() -> Answer:
            await self._send()
            return await optim_step()

        return await self._insist(work)

    async def _send(self) -> None:
        while self._sent < len(self._parts):
            await self._parts[self._sent]()
            self._sent += 1

    async def _insist(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        missed = False
        wait = FIRST_WAIT_SECONDS
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await work()
            except ConflictError:
                if missed or attempt == ATTEMPTS:
                    raise  # It is said again: something else is in the way.
                missed, self._sent = True, 0
            except PlatformError as error:
                if error.status not in _PASSING or attempt == ATTEMPTS:
                    raise
                missed = False
                await asyncio.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        raise AssertionError("unreachable")
