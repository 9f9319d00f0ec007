"""Things that run here while somebody uses them. Each ends when it is told to, when nobody has used it for a while, or with
the platform; none outlives this process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

SWEEP_SECONDS = 15.0
"""Seconds between two searches for idle sessions."""


@dataclass(eq=False)
class Held:
    """Something that runs in a task of its own until `ending` is set."""

    id: str
    ending: asyncio.Event = field(default_factory=asyncio.Event, kw_only=True)
    used: float = field(default_factory=time.monotonic, kw_only=True)
    """Time of the last request for it."""
    task: asyncio.Task[None] | None = field(default=None, kw_only=True)

    @property
    def busy(self) -> bool:
        """True while it is used without being asked for."""
        return False


H = TypeVar("H", bound=Held)


class Holding(Generic[H]):
    """Open sessions of one kind."""

    def __init__(self, stopping: asyncio.Event, idle_seconds: float) -> None:
        self._stopping = stopping
        self._idle_seconds = idle_seconds
        self.open: dict[str, H] = {}

    def begin(self, one: H, serving: Coroutine[Any, Any, None]) -> None:
        """Hold something while `serving` runs, which is to end when its `ending` is set."""
        self.open[one.id] = one
        one.task = asyncio.create_task(self._serve(one, serving))

    async def end(self, one: H) -> None:
        """End it, and wait for that."""
        one.ending.set()
        if one.task is not None:
            await asyncio.wait({one.task})

    async def work(self) -> None:
        """End what nobody uses any more; at the platform's stop, everything."""
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
