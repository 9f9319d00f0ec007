"""Open environments of the playground: they serve the model's tool calls, and can start and grade a task."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hud.environment.channel.client.remote_connection import RemoteConnection
from hud.errors import HudError, NotFoundError, OverloadedError, UsageError
from hud.eval.grade import Grade
from hud.fleet.environments import served
from hud.trace import Message, new_id, plain
from hud.trace.limits import check_answer
from hud_platform.environments.idle_limit import Held, Holding
from hud_platform.environments.registry import Environments, RunnableEnvironment
from hud_platform.tasksets.playable import file_source

if TYPE_CHECKING:
    from hud.trace import ToolSpec
    from hud_platform.access import Identity
    from hud_platform.store import Store

MOST_OF_PERSON = 2
MOST_OF_TEAM = 8
MOST = 16
IDLE_SECONDS = 900.0
TOOL_SECONDS = 120.0
"""Time limit of a tool call, in seconds."""
TASK_SECONDS = 300.0
"""Time limit of a task's start, and of its grading, in seconds."""


@dataclass(eq=False)
class World(Held):
    """An open environment, with its owner."""

    name: str
    owner: tuple[str, str | None]
    ready: asyncio.Future[RemoteConnection]
    tools: list[ToolSpec] = field(default_factory=list)
    templates: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `tasks.list`: `id`, `description`, `args` (a JSON schema)."""
    playing: bool = False
    """True from the start of a task until it is graded."""
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)


class Worlds(Holding[World]):
    """Open environments of one server."""

    def __init__(self, store: Store, stopping: asyncio.Event, *, own_machine: bool) -> None:
        """`own_machine`: environments may also be opened from files."""
        super().__init__(stopping, IDLE_SECONDS)
        self.store = store
        self.own_machine = own_machine

    async def bring_up(self, who: Identity, environment: str, path: str) -> World:
        """Start a deployed environment or, on the user's own machine, one from a file.
        Raises the error of a failed start, and `OverloadedError` if too many are open.
        """
        owner = _owner(who)
        runnable = await asyncio.to_thread(self._runnable, who, environment, path)
        while len(worlds := self._of(owner)) >= MOST_OF_PERSON:
            # Left over from a page that was closed without a request.
            await self.end(min(worlds, key=lambda world: world.used))
        # Nothing is awaited from here until it counts: requests at once would each find room.
        theirs = sum(world.owner[0] == who.team_id for world in self.open.values())
        if theirs >= MOST_OF_TEAM or len(self.open) >= MOST:
            raise OverloadedError("Too many environments are open in the playground.", 30.0)
        ready: asyncio.Future[RemoteConnection] = asyncio.get_running_loop().create_future()
        world = World(new_id(), runnable.name, owner, ready)
        self.begin(world, self._run(world, runnable))
        connection = await asyncio.shield(ready)
        world.tools = [tool for tool in await connection.list_tools() if not tool.delegated]
        world.templates = [row for row in await connection.list_tasks() if isinstance(row, dict)]
        return world

    def find(self, who: Identity, world_id: str) -> World:
        """Return an open environment of this owner. Raises `NotFoundError` for any other."""
        world = self.open.get(plain(world_id))
        if world is None or world.owner != _owner(who):
            raise NotFoundError("This environment is closed; choose it again.")
        world.used = time.monotonic()
        return world

    async def call(self, world: World, name: str, arguments: dict[str, Any] | str) -> Any:
        """Call a tool and return its result, or its error as a result. Raises `NotFoundError` for an unknown tool."""
        if name not in {tool.name for tool in world.tools}:
            raise NotFoundError(f"The environment {world.name!r} has no tool {name!r}.")
        async with world.one_at_a_time:
            connection = world.ready.result()
            outcome = await connection.call_tool(name, arguments, timeout=TOOL_SECONDS)
        world.used = time.monotonic()
        return outcome.result

    async def start(self, world: World, template: str, args: dict[str, Any]) -> list[Message]:
        """Start a task, replacing one in progress; returns its prompt."""
        async with world.one_at_a_time:
            connection = world.ready.result()
            async with _limit(f"The task {template!r} did not start"):
                if world.playing:
                    await connection.cancel()
                    world.playing = False
                prompt = (await connection.start(template, args)).prompt
        world.playing = True
        world.used = time.monotonic()
        return [Message(content=prompt)] if isinstance(prompt, str) else list(prompt)

    async def grade(self, world: World, answer: str) -> dict[str, Any]:
        """Grade the answer to the task in progress, which ends it; returns the frame. Raises `UsageError` without a task."""
        async with world.one_at_a_time:
            if not world.playing:
                raise UsageError("No task is in progress in this environment; load one first.")
            world.playing = False
            async with _limit("The grader did not answer"):
                frame = await world.ready.result().grade(check_answer(answer) or "", None)
        world.used = time.monotonic()
        Grade.from_dict(frame)  # Raises for an invalid grade.
        return frame

    def _of(self, owner: tuple[str, str | None]) -> list[World]:
        return [world for world in self.open.values() if world.owner == owner]

    def _runnable(self, who: Identity, environment: str, path: str) -> RunnableEnvironment:
        if not path.strip():
            if not environment.strip():
                raise UsageError("Choose an environment.")
            return Environments(self.store, who.team_id).runnable(environment)
        if not self.own_machine:
            raise UsageError("Choose one of the environments that are deployed to this server.")
        place = Path(file_source(path).name)
        return RunnableEnvironment("", place.stem, 0, place.parent, place, Path(sys.executable))

    async def _run(self, world: World, runnable: RunnableEnvironment) -> None:
        try:
            place = served(runnable.source, runnable.python, runnable.variables, runnable.image)
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
                world.ready.exception()  # Retrieved here: the caller that opened it may have been cancelled.


@asynccontextmanager
async def _limit(what: str) -> AsyncIterator[None]:
    """Raise `UsageError` after `TASK_SECONDS`: the environment stays open."""
    try:
        async with asyncio.timeout(TASK_SECONDS):
            yield
    except TimeoutError:
        raise UsageError(f"{what} within {TASK_SECONDS:g} s.") from None


def _owner(who: Identity) -> tuple[str, str | None]:
    return who.team_id, who.user_id
