"""Children of a warm server that were forked before a rollout needs them.

A batch of many rollouts, such as a training step's, begins at once; forked one after another, its last ones would wait for
all others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from hud.errors import InfrastructureFault
from hud.eval.runtimes.child import Limits

if TYPE_CHECKING:
    from hud.eval.runtimes.warm import Child, WarmServer

_QUIET_SECONDS = 0.25
"""Time without a new rollout after which children are forked ahead."""
_IDLE_SECONDS = 60.0
_MOST_AHEAD = 512


class ForkedAhead:
    """The waiting children of one server.

    They are forked while no rollout begins, as many as rollouts were in progress together, and each is used by one. After
    `_IDLE_SECONDS` without a new rollout they are ended.
    """

    def __init__(self, server: WarmServer) -> None:
        self._server = server
        self._children: deque[Child] = deque()
        self._limits = Limits()
        self._most = 0
        """Largest number of rollouts in progress together."""
        self._timer: asyncio.TimerHandle | None = None
        self._forking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._children)

    def take(self, limits: Limits) -> Child | None:
        """Return a child under `limits` for one rollout; None without any."""
        if limits != self._limits:
            self._end()
        while self._children:
            child = self._children.popleft()
            if not child.ended.done():
                return child
            self._server.discard(child)
        return None

    def taken(self, limits: Limits, in_progress: int) -> None:
        """Note that a rollout begins, with the number of those in progress."""
        self._limits = limits
        self._most = min(max(self._most, in_progress), _MOST_AHEAD)
        self._stop()
        self._timer = self._server.loop.call_later(_QUIET_SECONDS, self._begin)

    def close(self) -> None:
        """End all, and fork no more."""
        self._stop()
        self._end()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._forking is not None:
            self._forking.cancel()
            self._forking = None

    def _end(self) -> None:
        for child in self._children:
            self._server.discard(child)
        self._children.clear()

    def _begin(self) -> None:
        self._timer = self._server.loop.call_later(_IDLE_SECONDS, self._idle)
        self._forking = self._server.loop.create_task(self._fork())

    def _idle(self) -> None:
        self._most = 0
        self._end()

    async def _fork(self) -> None:
        with contextlib.suppress(InfrastructureFault):  # The next rollout meets it, too.
            while len(self._children) < self._most and not self._server.dead:
                child = await self._server.start_child(self._limits, ahead=True)
                self._children.append(child)
                await child.started.wait()  # One at a time: rollouts in progress have precedence.
