"""Spares: resources started before a run needs them, for runs that follow each other quickly, or always.

A spare is handed out once and never returned, so that no two runs share it. One that no run takes in time is closed; all are
at the end of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from hud.errors import UsageError

KEPT_SECONDS = 1.0
"""Time after which an unused spare is closed, and largest time between two runs for which spares are started."""
_NUMBER = 2
"""Spares at a time: starting one takes longer than a short run."""
PAUSE_SECONDS = 0.025
"""Time from a run's start to the start of its successor's spare, which would take the processor from the run's first command."""

Resource = TypeVar("Resource")


class Spares(Generic[Resource]):
    """Spares of one kind, for the runs of an event loop."""

    def __init__(
        self,
        start: Callable[[], Awaitable[Resource]],
        close: Callable[[Resource], Awaitable[None]],
        is_usable: Callable[[Resource], bool],
        number: int | None = None,
    ) -> None:
        """`number`: spares that are kept from the first run on; None: a few, while runs follow each other.

        Raises `UsageError` for a negative number.
        """
        if number is not None and number < 0:
            raise UsageError(f"spares must be a number of at least 0, not {number!r}.")
        self._start, self._close, self._is_usable = start, close, is_usable
        self._number = number
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last = 0.0
        self._kept: deque[_Spare[Resource]] = deque()

    async def take(self) -> Resource:
        """Return a started resource of the caller's own, a spare if there is one."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # Spares of another loop are closed there.
            self._loop, self._last = loop, 0.0
            self._kept.clear()
        follows = loop.time() - self._last < KEPT_SECONDS
        self._last = loop.time()
        resource = await self._spare()
        if resource is None:
            resource = await self._start()
        number = self._number if self._number is not None else _NUMBER * follows
        kept_seconds = KEPT_SECONDS if self._number is None else None
        while len(self._kept) < number:
            self._kept.append(_Spare(self._start, self._close, self._kept, kept_seconds))
        return resource

    async def close(self) -> None:
        """Close all spares; a later run starts them again."""
        while self._kept:
            await self._kept[0].discard()

    async def _spare(self) -> Resource | None:
        while self._kept:
            resource = await self._kept.popleft().claim()
            if resource is not None and self._is_usable(resource):
                return resource
            if resource is not None:
                await self._close(resource)
        return None


class _Spare(Generic[Resource]):
    """A resource that starts, waits in `spares`, and is claimed or closed."""

    def __init__(
        self,
        start: Callable[[], Awaitable[Resource]],
        close: Callable[[Resource], Awaitable[None]],
        spares: deque[_Spare[Resource]],
        kept_seconds: float | None,
    ) -> None:
        self._start, self._close = start, close
        self._kept, self._kept_seconds = spares, kept_seconds
        self._claimed = asyncio.Event()
        self._started: asyncio.Future[Resource | None] = asyncio.get_running_loop().create_future()
        self._living = asyncio.create_task(self._live())

    async def claim(self) -> Resource | None:
        """Return the resource, which is then the caller's; None if it did not start."""
        self._claimed.set()
        try:
            return await asyncio.shield(self._started)
        except asyncio.CancelledError:
            self._living.cancel()
            await asyncio.wait([self._living])
            if self._started.done() and not self._started.cancelled():
                resource = self._started.result()
                if resource is not None:
                    await self._close(resource)
            raise

    async def discard(self) -> None:
        """Close the resource, or cancel its start."""
        self._living.cancel()
        await asyncio.wait([self._living])
        self._forget()  # A task that never ran did not.

    async def _live(self) -> None:
        try:
            await self._claimed_within(PAUSE_SECONDS)
            resource = await self._start()
        except BaseException as error:
            self._forget()
            self._started.set_result(None)  # The next run starts its own, and raises the error.
            if isinstance(error, Exception):
                return
            raise
        self._started.set_result(resource)
        try:
            await self._claimed_within(self._kept_seconds)
        finally:
            if not self._claimed.is_set():
                self._forget()
                await self._close(resource)

    async def _claimed_within(self, seconds: float | None) -> None:
        """Wait for the claim, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._claimed.wait()

    def _forget(self) -> None:
        with suppress(ValueError):
            self._kept.remove(self)
