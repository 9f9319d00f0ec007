"""Sessions with an idle limit. Each ends on request, after a time without use, or on shutdown; none outlives this
process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

SWEEP_SECONDS = 15.0
"""Interval between two searches for idle sessions."""


@dataclass(eq=False)
class Held:
    """Session that runs in its own task until `ending` is set."""

    id: str
    ending: asyncio.Event = field(default_factory=asyncio.Event, kw_only=True)
    used: float = field(default_factory=time.monotonic, kw_only=True)
    """Time of the last request, on the monotonic clock."""
    task: asyncio.Task[None] | None = field(default=None, kw_only=True)

    @property
    def busy(self) -> bool:
        """True while the session is in use without requests."""
        return False


H = TypeVar("H", bound=Held)


class Holding(Generic[H]):
    """Open sessions of one kind."""

    def __init__(self, stopping: asyncio.Event, idle_seconds: float) -> None:
        self._stopping = stopping
        self._idle_seconds = idle_seconds
        self.open: dict[str, H] = {}

    def begin(self, one: H, serving: Coroutine[Any, Any, None]) -> None:
        """Hold a session while `serving` runs, which must end when the session's `ending` is set."""
        self.open[one.id] = one
        one.task = asyncio.create_task(self._serve(one, serving))

    async def end(self, one: H) -> None:
        """End a session and wait for its task."""
        one.ending.set()
        if one.task is not None:
            await asyncio.wait({one.task})

    async def work(self) -> None:
        """End idle sessions; on shutdown, all sessions."""
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), SWEEP_SECONDS)
            long_ago = time.monotonic() - self._idle_seconds
            for one in self.open.values():
                if not one.busy and one.used < long_ago:
                    one.ending.set()
        await asyncio.gather(*(self.end(one) for one in list(self.open.values())))

    async def _serve(self, one: H, serving: Coroutine[Any, Any, None]) -> None:
        try:
            await serving
        finally:
            self.open.pop(one.id, None)
