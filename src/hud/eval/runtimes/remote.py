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

from hud.environment.channel import RemoteConnection
from hud.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from hud.environment import Task

READY_SECONDS = 120.0
_STDERR_SHOWN = 2000


class Runtime:
    """An environment that listens at `tcp://host:port` (`hud serve`); every rollout is a connection of its own."""

    def __init__(self, url: str, params: dict[str, Any] | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme != "tcp" or not parts.hostname or not parts.port:
            raise UsageError(f"A runtime's address reads tcp://host:port, not {url!r}.")
        self.url = url
        self.params = params or {}
        self._host, self._port = parts.hostname, parts.port

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

    def __init__(self, source: str | Path, *, ready_timeout: float = READY_SECONDS) -> None:
        self.source = str(source)
        self.ready_timeout = ready_timeout

    @asynccontextmanager
    async def __call__(self, task: Task) -> AsyncIterator[RemoteConnection]:
        """Start an interpreter that serves the environment, and connect."""
        del task
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
        tail = bytearray()
        assert process.stderr is not None
        reading = asyncio.create_task(_keep_tail(process.stderr, tail))
        try:
            port = await self._port(process, tail)
            connection = await RemoteConnection.dial(
                "127.0.0.1", port, ready_timeout=self.ready_timeout
            )
            connection.address = f"subprocess:{process.pid}"
            connection.why_lost = lambda: _why(process, tail)
            try:
                yield connection
            finally:
                await connection.close()
        finally:
            await _end(process)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def _port(self, process: asyncio.subprocess.Process, tail: bytearray) -> int:
        """Wait until the environment says where it listens."""
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self.ready_timeout):
                async for line in process.stdout:
                    if line.startswith(b"HUD_SERVE_PORT="):
                        return int(line.partition(b"=")[2])
        except TimeoutError:
            raise EnvironmentFault(
                f"{self.source} did not come up within {self.ready_timeout:g} s."
            ) from None
        raise EnvironmentFault(f"{self.source} did not come up: {await _why(process, tail)}.")


async def _keep_tail(stream: asyncio.StreamReader, tail: bytearray) -> None:
    while chunk := await stream.read(65536):
        tail += chunk
        del tail[:-_STDERR_SHOWN]


async def _why(process: asyncio.subprocess.Process, tail: bytearray) -> str:
    """Return how a process ended, and the last it said."""
    try:
        async with asyncio.timeout(2.0):
            status = await process.wait()
    except TimeoutError:
        return "its process hung up, but runs on"
    return told_exit(status, bytes(tail))


def told_exit(status: int, stderr: bytes) -> str:
    """Say in a sentence how a process ended (`status` as `subprocess` has it), with its last words."""
    how = (
        f"its process was killed by {signal.Signals(-status).name}"
        if status < 0
        else f"its process exited with {status}"
    )
    words = stderr.decode("utf-8", "replace").strip()
    return f"{how}; it last said: {words[-_STDERR_SHOWN:]}" if words else how


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process and everything that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
