"""Deployed environments: kept warm, one server for each build that forks itself for each rollout; or served alone."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hud.errors import EnvironmentFault
from hud.eval.runtimes.containers.contained_environment import (
    READY_SECONDS,
    contained_environment,
    serving_container,
)
from hud.eval.runtimes.containers.container import ContainerSpec
from hud.eval.runtimes.fork import ForkRuntime
from hud.eval.runtimes.interpreter import Interpreter
from hud.eval.runtimes.served import ServedProcess

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.environment.connection import Connection
    from hud.environment.templates.task import Provider
    from hud.fleet.builds.build_cache import BuildCache

MOST_WARM = 8
"""Builds that stay warm; of those that nobody plays in, the one used longest ago makes room."""
_PASSED = ("PATH", "LANG", "TMPDIR", "HOME", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


@dataclass
class _Warm:
    """A build's warm server, and how many rollouts are in it."""

    runtime: ForkRuntime
    players: int = 0


class WarmEnvironments:
    """The warm servers of one worker."""

    def __init__(self, most: int = MOST_WARM, builds: BuildCache | None = None) -> None:
        self.most = most
        self.builds = builds
        self._warm: OrderedDict[str, _Warm] = OrderedDict()

    def provider(self, lease: dict[str, Any]) -> Provider:
        """Return what brings up the environments of a rollout: its own, and its verifier's.

        Raises `EnvironmentFault` for a rollout that came with a problem.
        """
        if lease["problem"] is not None:
            raise EnvironmentFault(lease["problem"])

        def bring_up(task: Task) -> AbstractAsyncContextManager[Connection]:
            environment = lease["environments"][task.env]
            if environment["image"] is not None:
                return self._contained(environment, task)
            return self._forked(environment, task)

        return bring_up

    async def close(self) -> None:
        """Stop every server, and whatever it forked."""
        for warm in self._warm.values():
            await warm.runtime.aclose()
        self._warm.clear()

    def __len__(self) -> int:
        return len(self._warm)

    @asynccontextmanager
    async def _contained(
        self, environment: dict[str, Any], task: Task
    ) -> AsyncIterator[Connection]:
        image = environment["image"]
        if self.builds is not None:
            await self.builds.load_image(task.env, environment["build_id"], image)
        spec = ContainerSpec(image, variables=environment["variables"])
        async with contained_environment(spec) as connection:
            yield connection

    @asynccontextmanager
    async def _forked(self, environment: dict[str, Any], task: Task) -> AsyncIterator[Connection]:
        build = environment["build_id"]
        source, python = environment["source"], environment["python"]
        if source is None and build not in self._warm:
            assert self.builds is not None
            installed = await self.builds.get(task.env, build)
            source, python = installed.source, installed.python
        warm = self._warm.get(build)
        if warm is None:
            interpreter = apart(Path(python), environment["variables"])
            runtime = ForkRuntime(source, interpreter=interpreter)
            warm = self._warm[build] = _Warm(runtime)
        self._warm.move_to_end(build)
        warm.players += 1
        try:
            async with warm.runtime(task) as connection:
                yield connection
        finally:
            warm.players -= 1
            await self._make_room()

    async def _make_room(self) -> None:
        for build, warm in list(self._warm.items()):
            if len(self._warm) <= self.most:
                return
            if warm.players == 0:
                del self._warm[build]
                await warm.runtime.aclose()


def apart(python: Path, variables: Mapping[str, str]) -> Interpreter:
    """Return an interpreter that sees an environment's variables and none of this process's own secrets."""
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return Interpreter(python, {**passed, **variables})


@asynccontextmanager
async def served(
    source: Path, python: Path, variables: Mapping[str, str], image: str | None
) -> AsyncIterator[tuple[str, int]]:
    """A deployed environment on a port of this machine, for as long as the block lasts."""
    if image is not None:
        async with serving_container(ContainerSpec(image, variables=variables)) as (_, host, port):
            yield host, port
        return
    process = await ServedProcess.start(str(source), apart(python, variables))
    try:
        yield "127.0.0.1", await process.port(READY_SECONDS)
    finally:
        await process.end()
