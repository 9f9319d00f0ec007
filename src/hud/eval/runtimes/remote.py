"""`Runtime`: an environment that is served elsewhere; `SubprocessRuntime`: a fresh interpreter for each rollout."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hud.environment import Environment
from hud.environment.channel import RemoteConnection
from hud.environment.channel.client import Loss
from hud.environment.requirements import refuse_unsupported
from hud.errors import EnvironmentFault, UsageError
from hud.eval.runtimes.exits import SHOWN, told_exit

if TYPE_CHECKING:
    from hud.environment import Task

READY_SECONDS = 120.0
_ANNOUNCED = b"HUD_SERVE_PORT="
_NOT_LOADED = 2
"""Exit status of a server that could not load its environment."""


class Runtime:
    """An environment that listens at `tcp://host:port` (`hud serve`); every rollout is a connection of its own."""

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
        self._host, self._port = host, port

    @asynccontextmanager
    async def __call__(self, task: Task) -> AsyncIterator[RemoteConnection]:
        """Connect for one rollout."""
        del task
        ready = float(self.params.get("ready_timeout", 30.0))
        connection = await RemoteConnection.dial(self._host, self._port, ready_timeout=ready)
        try:
            yield connection
        finally:
            await connection.close()


class SubprocessRuntime:
    """A fresh interpreter for each rollout: slow (it imports the environment anew), and for code that cannot fork."""

    def __init__(
        self, source: str | Path | Environment, *, ready_timeout: float = READY_SECONDS
    ) -> None:
        self.source = path_of(source)
        self.ready_timeout = ready_timeout

    @asynccontextmanager
    async def __call__(self, task: Task) -> AsyncIterator[RemoteConnection]:
        """Start an interpreter that serves the environment, and connect."""
        asked = refuse_unsupported(task.slug, task.runtime_config, "SubprocessRuntime").limits
        startup = asked.startup_timeout_s if asked is not None else None
        ready_timeout = self.ready_timeout if startup is None else startup
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "hud.environment.channel",
            self.source,
            "--follow-stdin",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        served = _Served(self.source, process)
        try:
            port = await served.port(ready_timeout)
            connection = await RemoteConnection.dial("127.0.0.1", port, ready_timeout=ready_timeout)
            connection.address = f"subprocess:{process.pid}"
            connection.why_lost = served.why_lost
            try:
                yield connection
            finally:
                await connection.close()
        finally:
            await served.end()


class _Served:
    """The process of one rollout, and what it prints."""

    def __init__(self, source: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.source = source
        self.process = process
        self.said = bytearray()
        self._announced: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Both are read to the end: a pipe that nobody reads would stop the environment.
        self._reading = [
            asyncio.create_task(self._find_port(process.stdout)),
            asyncio.create_task(_keep_tail(process.stderr, self.said)),
        ]

    async def port(self, timeout: float) -> int:
        """Wait until the environment says where it listens."""
        try:
            async with asyncio.timeout(timeout):
                either: list[asyncio.Future[Any]] = [self._announced, self._reading[0]]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise EnvironmentFault(f"{self.source} did not come up within {timeout:g} s.") from None
        if self._announced.done():
            return self._announced.result()
        told = (await self.why_lost()).reason
        if self.process.returncode == _NOT_LOADED:
            raise UsageError(self.said.decode("utf-8", "replace").strip())
        raise EnvironmentFault(f"{self.source} did not come up: {told}.")

    async def why_lost(self) -> Loss:
        """Return how the process ended, and the last it said."""
        try:
            async with asyncio.timeout(2.0):
                status = await self.process.wait()
                await asyncio.wait(self._reading, timeout=1.0)
        except TimeoutError:
            return Loss("it closed its connection, but runs on")
        return Loss(told_exit(status, self.said.decode("utf-8", "replace")))

    async def end(self) -> None:
        """End the process and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        for task in self._reading:
            task.cancel()
        await asyncio.wait(self._reading)

    async def _find_port(self, stream: asyncio.StreamReader) -> None:
        heard = b""
        while chunk := await stream.read(65536):
            if self._announced.done():
                continue
            heard += chunk
            *lines, heard = heard.split(b"\n")
            for line in lines:
                if line.startswith(_ANNOUNCED) and not self._announced.done():
                    self._announced.set_result(int(line.removeprefix(_ANNOUNCED)))


async def _keep_tail(stream: asyncio.StreamReader, tail: bytearray) -> None:
    while chunk := await stream.read(65536):
        tail += chunk
        del tail[:-SHOWN]


def path_of(source: str | Path | Environment) -> str:
    """Return where another process can load `source` from."""
    if not isinstance(source, Environment):
        return str(source)
    path = source.source_file
    if path is None or not os.path.exists(path):
        raise UsageError(
            f"Environment {source.name!r} was not made in a file, so no other process can load it; write it to a "
            "file and pass its path, or use LocalRuntime."
        )
    return path
