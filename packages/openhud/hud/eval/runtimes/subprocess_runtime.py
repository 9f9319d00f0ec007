"""`SubprocessRuntime`: a new interpreter for each rollout."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hud.environment import Environment
from hud.environment.channel import RemoteConnection
from hud.environment.channel.client.remote_connection import SHUTDOWN_SECONDS
from hud.environment.templates.runtime_config import refuse_unsupported
from hud.eval.runtimes.rollout_runtime import RolloutRuntime
from hud.eval.runtimes.served import ServedProcess
from hud.eval.runtimes.source_path import path_of

if TYPE_CHECKING:
    from hud.environment import Task

READY_SECONDS = 120.0


class SubprocessRuntime(RolloutRuntime):
    """A new interpreter for each rollout: slow (it imports the environment each time), for code that cannot fork."""

    def __init__(
        self, source: str | Path | Environment, *, ready_timeout: float = READY_SECONDS
    ) -> None:
        self.source = path_of(source)
        self.ready_timeout = ready_timeout

    @asynccontextmanager
    async def __call__(self, task: Task) -> AsyncIterator[RemoteConnection]:
        """Start an interpreter that serves the environment, and connect."""
        limits = refuse_unsupported(task.slug, task.runtime_config, "SubprocessRuntime").limits
        startup = limits.startup_timeout_s if limits is not None else None
        ready_timeout = self.ready_timeout if startup is None else startup
        served = await ServedProcess.start(self.source, one_run=True)
        patience = SHUTDOWN_SECONDS  # What an environment opened is closed, also where nobody waits for it any longer.
        try:
            connection = await served.connect(ready_timeout)
            patience = 0.0
            connection.address = f"subprocess:{served.pid}"
            try:
                yield connection
            finally:
                await connection.close()
        finally:
            await served.end(patience)
