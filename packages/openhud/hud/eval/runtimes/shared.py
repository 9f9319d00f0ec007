"""`Shared`: several rollouts in one running environment, for environments that start slowly or hold a device."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hud.environment.channel import RemoteConnection
from hud.errors import UsageError
from hud.eval.runtimes.rollout_runtime import RolloutRuntime, as_runtime

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.environment.connection import Connection
    from hud.environment.templates.task import Provider

_READY_SECONDS = 30.0


@dataclass
class _Place:
    """A running environment, with its rollouts."""

    slots: asyncio.Semaphore
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    """Number of rollouts that hold or await a slot."""
    world: AbstractAsyncContextManager[Connection] | None = None
    endpoint: tuple[str, int] | None = None


class Shared(RolloutRuntime):
    """At most `width` concurrent rollouts in an environment opened by `inner`; others wait.

    Each has its own session, and therefore its own state. There is one environment for each name and runtime_config. It is
    closed after its last rollout, or at the end of `async with Shared(...) as runtime:`.
    """

    def __init__(self, inner: Provider, *, width: int) -> None:
        if width < 1:
            raise UsageError(f"Shared needs a width of at least 1, not {width}.")
        self.inner = as_runtime(inner)
        self.width = width
        self._places: dict[str, _Place] = {}
        self._held = 0

    async def __aenter__(self) -> Shared:
        self._held += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._held -= 1
        if self._held == 0:
            for key in list(self._places):
                await self._leave(key)

    async def aclose(self) -> None:
        """Close all idle environments, and the inner runtime."""
        for key in list(self._places):
            await self._leave(key)
        await self.inner.aclose()

    @asynccontextmanager
    async def __call__(self, task: Task) -> AsyncIterator[Connection]:
        """Wait for a slot, and open a session of the shared environment for one rollout."""
        key = json.dumps([task.env, task.runtime_config], sort_keys=True, default=str)
        place = self._places.setdefault(key, _Place(asyncio.Semaphore(self.width)))
        place.users += 1
        try:
            async with place.slots:
                host, port = await self._endpoint(place, task)
                connection = await RemoteConnection.dial(host, port, ready_timeout=_READY_SECONDS)
                try:
                    yield connection
                finally:
                    await connection.close()
        finally:
            place.users -= 1
            if self._held == 0:
                await self._leave(key)

    async def _endpoint(self, place: _Place, task: Task) -> tuple[str, int]:
        """Return the environment's address; the first call opens it."""
        async with place.starting:
            if place.endpoint is None:
                world = self.inner(task)
                first: Any = await world.__aenter__()
                endpoint = getattr(first, "endpoint", None)
                if endpoint is None:
                    await world.__aexit__(None, None, None)
                    raise UsageError(
                        f"{type(self.inner).__name__} gives environments that cannot be shared: they listen at no "
                        "address. Use SubprocessRuntime inside Shared."
                    )
                place.world, place.endpoint = world, endpoint
                # The session that found the address plays no rollout: its resources can be freed.
                await first.close()
            return place.endpoint

    async def _leave(self, key: str) -> None:
        """Close an environment if it is idle."""
        place = self._places.get(key)
        if place is None or place.users:
            return
        del self._places[key]
        if place.world is not None:
            await place.world.__aexit__(None, None, None)
