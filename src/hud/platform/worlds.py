"""Environments that are open in the playground: their tools answer whoever talks to a model there, outside of any task.

They live in this process and end with it, when they are closed, or when nobody has used them for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hud.environment.channel.client import RemoteConnection
from hud.errors import HudError, NotFoundError, UsageError
from hud.fleet.environments import served
from hud.platform.environments import Environments, RunnableEnvironment
from hud.platform.playable import file_source
from hud.platform.serving.tokens import OverloadedError
from hud.trace import new_id, plain

if TYPE_CHECKING:
    from hud.platform.access import Identity
    from hud.platform.platform import Platform
    from hud.trace import ToolSpec

MOST_OF_PERSON = 2
MOST = 16
IDLE_SECONDS = 900.0
SWEEP_SECONDS = 15.0
TOOL_SECONDS = 120.0
"""How long a tool may take."""


@dataclass(eq=False)
class World:
    """One environment, and whose it is."""

    id: str
    name: str
    owner: tuple[str, str | None]
    ready: asyncio.Future[RemoteConnection]
    tools: list[ToolSpec] = field(default_factory=list)
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    used: float = field(default_factory=time.monotonic)
    task: asyncio.Task[None] | None = None


class Worlds:
    """The environments that are open on one server."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self._open: dict[str, World] = {}

    async def open(self, who: Identity, environment: str, path: str) -> World:
        """Bring up a deployed environment or, on one's own machine, one of a file. Raises what it says at its start."""
        owner = _owner(who)
        if sum(one.owner == owner for one in self._open.values()) >= MOST_OF_PERSON:
            # Of a page that was closed without a word.
            oldest = min(
                (one for one in self._open.values() if one.owner == owner),
                key=lambda one: one.used,
            )
            await self.close(oldest)
        if len(self._open) >= MOST:
            raise OverloadedError("Too many environments are open in the playground.", 30.0)
        found = await asyncio.to_thread(self._runnable, who, environment, path)
        ready: asyncio.Future[RemoteConnection] = asyncio.get_running_loop().create_future()
        world = World(new_id(), found.name, owner, ready)
        self._open[world.id] = world
        world.task = asyncio.create_task(self._serve(world, found))
        connection = await asyncio.shield(ready)
        world.tools = [tool for tool in await connection.list_tools() if not tool.delegated]
        return world

    def find(self, who: Identity, world_id: str) -> World:
        """Return an environment that somebody has open. Raises `NotFoundError` for any other."""
        found = self._open.get(plain(world_id))
        if found is None or found.owner != _owner(who):
            raise NotFoundError("This environment is closed; choose it again.")
        found.used = time.monotonic()
        return found

    async def call(self, world: World, name: str, arguments: dict[str, Any] | str) -> Any:
        """Call a tool; what goes wrong in it is its answer."""
        if name not in {tool.name for tool in world.tools}:
            raise NotFoundError(f"The environment {world.name!r} has no tool {name!r}.")
        async with world.one_at_a_time:
            connection = world.ready.result()
            outcome = await connection.call_tool(name, arguments, timeout=TOOL_SECONDS)
        world.used = time.monotonic()
        return outcome.result

    async def close(self, world: World) -> None:
        """End an environment."""
        world.ending.set()
        if world.task is not None:
            await asyncio.wait({world.task})

    async def work(self) -> None:
        """End environments that nobody uses any more; at the platform's stop, all of them."""
        stopping = self.platform.stopping
        while not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), SWEEP_SECONDS)
            long_ago = time.monotonic() - IDLE_SECONDS
            for world in self._open.values():
                if world.used < long_ago:
                    world.ending.set()
        await asyncio.gather(*(self.close(world) for world in list(self._open.values())))

    def _runnable(self, who: Identity, environment: str, path: str) -> RunnableEnvironment:
        if not path.strip():
            if not environment.strip():
                raise UsageError("Choose an environment.")
            return Environments(self.platform.store, who.team_id).runnable(environment)
        if self.platform.config.keys:
            raise UsageError("Environments of this server are chosen among those deployed to it.")
        place = Path(file_source(path).name)
        return RunnableEnvironment("", place.stem, 0, place, Path(sys.executable))

    async def _serve(self, world: World, found: RunnableEnvironment) -> None:
        try:
            place = served(found.source, found.python, found.variables, found.image)
            async with place as (host, port):
                connection = await RemoteConnection.dial(host, port)
                try:
                    world.ready.set_result(connection)
                    await world.ending.wait()
                finally:
                    with contextlib.suppress(HudError):
                        await connection.close()
        except HudError as error:
            if not world.ready.done():
                world.ready.set_exception(error)
                world.ready.exception()  # Whoever opens it is told; he may be gone.
        finally:
            self._open.pop(world.id, None)


def _owner(who: Identity) -> tuple[str, str | None]:
    return who.team_id, who.user_id
