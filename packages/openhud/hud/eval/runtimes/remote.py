"""`Runtime`: a remote environment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hud.environment.channel import RemoteConnection
from hud.errors import UsageError
from hud.eval.runtimes.rollout_runtime import RolloutRuntime

if TYPE_CHECKING:
    from hud.environment import Task


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
