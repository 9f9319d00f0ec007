"""`Runtime`: a remote environment; `SubprocessRuntime`: a new interpreter for each rollout."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hud.environment import Environment
from hud.environment.channel import RemoteConnection
from hud.environment.templates.runtime_config import refuse_unsupported
from hud.errors import UsageError
from hud.eval.runtimes.rollout_runtime import RolloutRuntime
from hud.eval.runtimes.served import ServedProcess

if TYPE_CHECKING:
    from hud.environment import Task

READY_SECONDS = 120.0


class Runtime(RolloutRuntime):
    """An environment at `tcp://host:port` (`hud serve`); every rollout has its own connection."""

    def __init__(self, url: str, params: dict[str, Any] | None = None) -> None:
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if parts.scheme != "tcp" or not host or not port:
            raise UsageError(f"A runtime's address reads tcp://host:port, not {url!r}.")
        self.url = url
        self.params = params or {}
        self.host, self.port = host, port

    @asynccontextmanager
    async def __call__(self, task: Task) -> AsyncIterator[RemoteConnection]:
        del task
        ready = float(self.params.get("ready_timeout", 30.0))
        connection = await RemoteConnection.dial(self.host, self.port, ready_timeout=ready)
        try:
            yield connection
        finally:
            await connection.close()


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
        try:
            connection = await served.connect(ready_timeout)
            connection.address = f"subprocess:{served.pid}"
            try:
                yield connection
            finally:
                await connection.close()
        finally:
            await served.end()


def path_of(source: str | Path | Environment) -> str:
    """Return the source for another process: `path`, or `path:attribute` for a file with several environments.

    Raises `UsageError` for an environment without a file.
    """
    if not isinstance(source, Environment):
        return str(source)
    path = source.source_file
    if path is None or not os.path.exists(path):
        raise UsageError(
            f"Environment {source.name!r} was not made in a file, so no other process can load it; write it to a "
            "file and pass its path, or use LocalRuntime."
        )
    for module in list(sys.modules.values()):
        # A file loaded twice is two modules.
        if getattr(module, "__file__", None) == path:
            held = {
                name: environment
                for name, environment in vars(module).items()
                if isinstance(environment, Environment)
            }
            names = [name for name, environment in held.items() if environment is source]
            if names and len(set(map(id, held.values()))) > 1:
                return f"{path}:{names[0]}"
    return path
