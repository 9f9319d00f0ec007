"""`Admission`: whether another rollout may begin now, by free memory and by the requests that wait for their model.

A rollout that runs is never held back: those that have begun end, and free what the next one needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from time import monotonic

from hud.inference.request_window import limited_windows
from hud.processes.host_memory import HostMemory

RESERVE_BYTES = 512 << 20
"""Free memory below which no further rollout begins, at most `RESERVE_SHARE` of what was free at first."""
RESERVE_SHARE = 0.25
READING_SECONDS = 0.1
"""Age up to which a reading of the free memory is used again."""
POLL_SECONDS = 0.02


class MemoryGate:
    """Whether the memory of this machine, within its control groups, has room for a further rollout."""

    def __init__(self, free: Callable[[], int] | None = None) -> None:
        """`free` returns the free bytes; None: this machine's."""
        self._free = free or HostMemory().free
        self.reserve = min(RESERVE_BYTES, int(self._free() * RESERVE_SHARE))
        self._read_at = float("-inf")
        self._is_short = False

    @property
    def is_short(self) -> bool:
        """True while less than the reserve is free."""
        now = monotonic()
        if now - self._read_at >= READING_SECONDS:
            self._read_at = now
            self._is_short = self._free() < self.reserve
        return self._is_short


@cache
def machine_memory() -> MemoryGate:
    """Return the gate of this process, whose reserve is of the memory that was free when it was first asked for."""
    return MemoryGate()


class Admission:
    """Admission of a batch's rollouts, one at a time and in their order."""

    def __init__(self, memory: MemoryGate | None = None) -> None:
        self._memory = memory or machine_memory()
        self._next = asyncio.Lock()
        self.held_by: str | None = None
        """`memory` or `requests` while a rollout is held back; None: none is."""

    async def admit(self, running: Callable[[], int], stopping: Callable[[], bool]) -> None:
        """Wait until a rollout may begin: at once where none runs, or where the batch is to stop."""
        async with self._next:
            while running() and not stopping() and (reason := self._reason()) is not None:
                self.held_by = reason
                await asyncio.sleep(POLL_SECONDS)
            self.held_by = None

    def _reason(self) -> str | None:
        if self._memory.is_short:
            return "memory"
        if any(window.crowded for window in limited_windows().values()):
            return "requests"
        return None
