"""`Background`: background work of a server, from its start to its stop."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from hud.errors import StoreError

Work = Callable[[], Awaitable[None]]

_log = logging.getLogger("hud.platform")

STOP_SECONDS = 20.0
"""Time for work to end by itself before it is cancelled."""
RESTART_SECONDS = 1.0
"""Delay before failed background work is restarted."""


class Service(ABC):
    """State in the memory of a server, with background work of its own."""

    @abstractmethod
    async def work(self) -> None:
        """Run until the server stops (`Parts.stopping`). An exception is logged, and the work is run again."""


class Background:
    """Task group of background work. Failed work is logged and restarted until the server stops."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        """Set when the server stops: background work then releases its leases and ends."""
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def running(self, works: Iterable[Work]) -> AsyncIterator[None]:
        """Run `works` during the block; leaving it drains them."""
        async with asyncio.TaskGroup() as group:
            self._tasks = [group.create_task(self._persist(work)) for work in works]
            try:
                yield
            finally:
                await self.drain()

    async def drain(self) -> None:
        """End all work, within `STOP_SECONDS` or by cancellation. Requests can still be served during this time."""
        self.stopping.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
            for task in late:
                task.cancel()

    async def _persist(self, work: Work) -> None:
        while not self.stopping.is_set():
            try:
                await work()
                return
            except StoreError as error:
                # Of the operator's disk or database, where a traceback shows nothing.
                _log.error("Background work failed and is restarted: %s", error)
            except Exception:
                _log.exception("Background work failed and is restarted.")
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), RESTART_SECONDS)
