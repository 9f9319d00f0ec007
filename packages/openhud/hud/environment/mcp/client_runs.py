"""`Runs`: a run of an environment for each client of a server, opened by the client's first request.

Counts requests in each connection; independent of their contents.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hud.environment.connection import Connection
from hud.errors import RolloutError

OpenRun = Callable[[], Awaitable[Connection]]
"""Factory that opens a new run."""
_LEAVE_SECONDS = 10.0
"""Time-out of requests in a run that is being closed, in seconds."""


@dataclass(eq=False)
class _Held:
    connection: Connection
    requests: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Event: set while the run has no active request."""

    async def end(self, patience: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self.quiet.wait()
        with contextlib.suppress(
            RolloutError
        ):  # No client is left to receive the error of a failed shutdown.
            await self.connection.close()


class Runs:
    """Open runs by client."""

    def __init__(self, open_run: OpenRun) -> None:
        self._open_run = open_run
        self._held: dict[str, asyncio.Task[_Held]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def of(self, client: str) -> AsyncIterator[Connection]:
        """Yield the client's run for a request. After a fault the run is closed, and the next request opens a new one."""
        opening = self._held.get(client)
        if opening is None:
            opening = self._held[client] = asyncio.create_task(self._open())
        try:
            held = await asyncio.shield(opening)
        except BaseException:
            if opening.done() and self._held.get(client) is opening:
                del self._held[client]
            raise
        held.requests += 1
        held.quiet.clear()
        try:
            yield held.connection
        except RolloutError:
            if self._held.get(client) is opening:
                self._end(client)
            raise
        finally:
            held.requests -= 1
            if held.requests == 0:
                held.quiet.set()

    async def leave(self, client: str) -> None:
        """End a client's run, if it has one."""
        if client in self._held:
            await asyncio.shield(self._end(client))

    async def renew(self, patience: float = _LEAVE_SECONDS) -> None:
        """Replace all clients' runs by new ones; returns when the old ones have ended."""
        for client in list(self._held):
            self._end(client, patience)
        if self._ending:
            await asyncio.wait(set(self._ending))

    async def close(self) -> None:
        """End all runs and cancel their active requests."""
        await self.renew(0)

    async def _open(self) -> _Held:
        held = _Held(await self._open_run())
        held.quiet.set()
        return held

    def _end(self, client: str, patience: float = _LEAVE_SECONDS) -> asyncio.Task[None]:
        ending = asyncio.create_task(_end(self._held.pop(client), patience))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending


async def _end(opening: asyncio.Task[_Held], patience: float) -> None:
    await asyncio.wait({opening})
    if opening.exception() is None:
        await opening.result().end(patience)
