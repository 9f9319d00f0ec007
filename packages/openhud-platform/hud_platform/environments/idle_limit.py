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

    def begin(self, held: H, serving: Coroutine[Any, Any, None]) -> None:
        """Hold a session while `serving` runs, which must end when the session's `ending` is set."""
        self.open[held.id] = held
        held.task = asyncio.create_task(self._serve(held, serving))

    async def end(self, held: H) -> None:
        """End a session and wait for its task."""
        held.ending.set()
        if held.task is not None:
            await asyncio.wait({held.task})

    async def work(self) -> None:
        """End idle sessions; on shutdown, all sessions."""
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), SWEEP_SECONDS)
            long_ago = time.monotonic() - self._idle_seconds
            for held in self.open.values():
                if not held.busy and held.used < long_ago:
                    held.ending.set()
        await asyncio.gather(*(self.end(held) for held in list(self.open.values())))

    async def _serve(self, held: H, serving: Coroutine[Any, Any, None]) -> None:
        try:
            await serving
        finally:
            self.open.pop(held.id, None)
