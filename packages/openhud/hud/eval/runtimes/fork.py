"""`ForkRuntime`: every rollout in its own process, forked from a warm server.

The server has imported the environment already, so isolation costs milliseconds. A child that leaks, hangs or crashes
affects its own run only. It isolates faults, not attackers: a child has this user's permissions. Run an agent's commands
in a workspace.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hud.environment import Environment
from hud.environment.channel import RemoteConnection
from hud.environment.templates.runtime_config import refuse_unsupported
from hud.errors import UsageError
from hud.eval.runtimes.child import Limits
from hud.eval.runtimes.interpreter import Interpreter
from hud.eval.runtimes.rollout_runtime import RolloutRuntime
from hud.eval.runtimes.source_path import path_of
from hud.eval.runtimes.warm import WarmServer

if TYPE_CHECKING:
    from hud.environment import Task

STARTUP_SECONDS = 120.0


class ForkRuntime(RolloutRuntime):
    """Rollouts of the environment at `source` (a path, or an environment created in a file).

    Limits of each rollout: `memory_mb`, memory of each of its processes beyond the inherited; `cpu_seconds`, CPU time of
    each; `wall_seconds`, duration of the rollout, including the agent's turns. A rollout that exceeds one fails with a
    message.
    """

    def __init__(
        self,
        source: str | Path | Environment,
        *,
        memory_mb: float | None = None,
        cpu_seconds: float | None = None,
        wall_seconds: float | None = None,
        startup_timeout: float = STARTUP_SECONDS,
        interpreter: Interpreter | None = None,
    ) -> None:
        """`interpreter` is the Python of the environment; None: this process's."""
        self.source = path_of(source)
        self.interpreter = interpreter
        self.limits = Limits(memory_mb, cpu_seconds, wall_seconds)
        for name, value in vars(self.limits).items():
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise UsageError(f"{name} must be a positive number, not {value!r}.")
        self.startup_timeout = startup_timeout
        self._server: WarmServer | None = None
        self._starting: asyncio.Lock | None = None
        self._suspects: set[str] = set()

    @asynccontextmanager
    async def __call__(self, task: Task) -> AsyncIterator[RemoteConnection]:
        config = refuse_unsupported(
            task.slug, task.runtime_config, "ForkRuntime", honoured=["memory_mb"]
        )
        limits = self.limits
        if config.resources is not None and config.resources.memory_mb is not None:
            most = limits.memory_mb if limits.memory_mb is not None else math.inf
            limits = replace(limits, memory_mb=min(most, config.resources.memory_mb))
        startup = config.limits.startup_timeout_s if config.limits is not None else None
        server = await self._running(self.startup_timeout if startup is None else startup)
        child = await server.fork(limits)
        child.task = task.slug
        try:
            if server.offers:
                await child.connection.hello()  # Its capabilities are the run's own.
            yield child.connection
        finally:
            await child.close()

    async def aclose(self) -> None:
        """Stop the warm server and its children."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    async def _running(self, startup_timeout: float) -> WarmServer:
        """Return the warm server, started at first use, and again after its death."""
        loop = asyncio.get_running_loop()
        if self._server is not None and self._server.loop is not loop:
            self._server.stop()
            self._server, self._starting = None, None
        self._starting = self._starting or asyncio.Lock()
        async with self._starting:
            if self._server is None or self._server.dead:
                self._server = await WarmServer.start(
                    self.source, startup_timeout, self.interpreter, self._suspects
                )
            return self._server
