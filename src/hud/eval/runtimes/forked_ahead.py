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
from hud.eval.runtimes.zygote import MOST_AT_ONCE

if TYPE_CHECKING:
    from hud.eval.runtimes.warm import Child, WarmServer

_QUIET_SECONDS = 0.25
"""Time without a new rollout after which children are forked ahead."""
_IDLE_SECONDS = 60.0
_MOST_AHEAD = 512


class ForkedAhead:
    """The waiting children of one server.

    They are forked while no rollout begins, as many as rollouts were in progress together, and with a rollout that finds none
    waiting, a few for those that follow it. Each is used by one. After `_IDLE_SECONDS` without a new rollout they are ended.
    """

    def __init__(self, server: WarmServer) -> None:
        self._server = server
        self._children: deque[Child] = deque()
        self._limits = Limits()
        self._in_progress = 0
        """Rollouts in progress as the last one began."""
        self._most = 0
        """Largest number of rollouts in progress together."""
        self._last = 0.0
        """Begin of the last rollout, on the event loop's clock."""
        self._quiet: asyncio.TimerHandle | None = None
        """Timer of the next check whether rollouts begin."""
        self._idle: asyncio.TimerHandle | None = None
        """Timer of the end of those that wait."""
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

    def batch(self, limits: Limits) -> int:
        """Return how many children to fork for the next rollout and those that follow it: several cost less together."""
        if limits != self._limits:
            return 1
        return min(max(1, self._in_progress // 2), MOST_AT_ONCE)

    def add(self, children: list[Child]) -> None:
        """Add waiting children of the limits of the last rollout."""
        self._children.extend(children)

    def taken(self, limits: Limits, in_progress: int) -> None:
        """Note that a rollout begins, with the number of those in progress."""
        self._limits = limits
        self._in_progress = in_progress
        self._most = min(max(self._most, in_progress), _MOST_AHEAD)
        self._last = self._server.loop.time()
        self._stop()
        if self._quiet is None:
            self._quiet = self._server.loop.call_later(_QUIET_SECONDS, self._check)

    def close(self) -> None:
        """End all, and fork no more."""
        if self._quiet is not None:
            self._quiet.cancel()
        self._stop()
        self._end()

    def _stop(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._forking is not None:
            self._forking.cancel()
            self._forking = None

    def _check(self) -> None:
        """Begin to fork, if the last rollout began long enough ago; else check again."""
        left = self._last + _QUIET_SECONDS - self._server.loop.time()
        if left > 0:
            self._quiet = self._server.loop.call_later(left, self._check)
        else:
            self._quiet = None
            self._begin()

    def _end(self) -> None:
        for child in self._children:
            self._server.discard(child)
        self._children.clear()

    def _begin(self) -> None:
        self._idle = self._server.loop.call_later(_IDLE_SECONDS, self._give_up)
        self._forking = self._server.loop.create_task(self._fork())

    def _give_up(self) -> None:
        self._most = 0
        self._end()

    async def _fork(self) -> None:
        with contextlib.suppress(InfrastructureFault):  # The next rollout meets it, too.
            while len(self._children) < self._most and not self._server.dead:
                (child,) = await self._server.start_children(self._limits, ahead=True)
                self._children.append(child)
                await child.started.wait()  # One at a time: rollouts in progress have precedence.
