"""`ForkRuntime`: every rollout in an operating-system process of its own, forked from a warm server.

The server has imported the environment already, so isolation costs milliseconds. A child that leaks, hangs
or crashes takes only its own run with it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from hud.environment import Environment
from hud.environment.channel import RemoteConnection
from hud.environment.channel.framing import MAX_FRAME_BYTES
from hud.errors import EnvironmentFault, InfrastructureFault, UsageError
from hud.eval.runtimes.remote import told_exit

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.trace import ToolSpec

STARTUP_SECONDS = 120.0
_MESSAGE_BYTES = 1 << 16
_CONTROL = 3


class ForkRuntime:
    """Rollouts of the environment at `source` (a path, or an environment that was made in a file).

    For each rollout: `memory_mb` bounds the memory it takes beyond what it was forked with, `cpu_seconds` its
    processor time, `wall_seconds` its duration. A rollout that passes one fails, and says so.
    """

    def __init__(
        self,
        source: str | Path | Environment,
        *,
        memory_mb: int | None = None,
        cpu_seconds: float | None = None,
        wall_seconds: float | None = None,
        startup_timeout: float = STARTUP_SECONDS,
    ) -> None:
        self.source = _path_of(source)
        self.limits = {
            "memory_mb": memory_mb,
            "cpu_seconds": cpu_seconds,
            "wall_seconds": wall_seconds,
        }
        self.startup_timeout = startup_timeout
        self._server: _Server | None = None
        self._starting: asyncio.Lock | None = None

    @asynccontextmanager
    async def __call__(self, task: Task) -> AsyncIterator[RemoteConnection]:
        """Fork a process for one rollout."""
        del task
        server = await self._running()
        child = await server.fork(self.limits)
        try:
            yield child.connection
        finally:
            await child.close()

    async def aclose(self) -> None:
        """Stop the warm server, and whatever it forked."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    async def _running(self) -> _Server:
        """Return the warm server; started when first needed, and again if it died."""
        loop = asyncio.get_running_loop()
        if self._server is not None and self._server.loop is not loop:
            self._server.stop()
            self._server, self._starting = None, None
        self._starting = self._starting or asyncio.Lock()
        async with self._starting:
            if self._server is None or self._server.dead:
                self._server = await _Server.start(self.source, self.startup_timeout)
            return self._server


class _Child:
    """One rollout's process, seen from here."""

    def __init__(self, server: _Server, number: int) -> None:
        self.server = server
        self.number = number
        self.ended: asyncio.Future[dict[str, Any]] = server.loop.create_future()
        self.connection: RemoteConnection

    async def why_lost(self) -> str:
        """Return what became of the process."""
        try:
            async with asyncio.timeout(5.0):
                end = await asyncio.shield(self.ended)
        except TimeoutError:
            return "its process hung up, but runs on"
        limit = end.get("limit")
        if limit is not None:
            return f"it passed its limit {limit}={self.server.limits_of(self.number)[limit]:g}"
        return told_exit(end["status"], end["said"].encode())

    async def close(self) -> None:
        """Hang up; a process that does not end by itself is killed."""
        await self.connection.close()
        try:
            async with asyncio.timeout(2.0):
                await asyncio.shield(self.ended)
        except TimeoutError:
            self.server.say({"kill": self.number})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5.0):
                    await asyncio.shield(self.ended)
        self.server.forget(self.number)


class _Server:
    """The warm server process."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.process = process
        self.control = control
        self.loop = asyncio.get_running_loop()
        self.dead = False
        self.manifest: dict[str, Any] = {}
        self.tools: list[ToolSpec] | None = None
        self._ready: asyncio.Future[None] = self.loop.create_future()
        self._children: dict[int, _Child] = {}
        self._limits: dict[int, dict[str, Any]] = {}
        self._numbers = count(1)
        self.loop.add_reader(control, self._hear)
        atexit.register(self.stop)

    @classmethod
    async def start(cls, source: str, timeout: float) -> _Server:
        """Start an interpreter that loads the environment, and wait until it has."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        code = f"import os; os.dup2({theirs.fileno()}, {_CONTROL}); from hud.eval.runtimes import zygote; zygote.main()"
        # Not asyncio's: the server outlives the event loop's child watching, and starting it takes a moment.
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", code, source],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        server = cls(process, ours)
        try:
            async with asyncio.timeout(timeout):
                await server._ready
        except TimeoutError:
            server.stop()
            raise EnvironmentFault(f"{source} was not imported within {timeout:g} s.") from None
        except BaseException:
            server.stop()
            raise
        return server

    async def fork(self, limits: dict[str, Any]) -> _Child:
        """Fork a child, and connect to it."""
        ours, theirs = socket.socketpair()
        number = next(self._numbers)
        child = _Child(self, number)
        self._children[number], self._limits[number] = child, limits
        request = orjson.dumps({"fork": number, **limits})
        try:
            await self._send(request, theirs.fileno())
        except OSError as error:
            self.dead = True
            raise InfrastructureFault(
                f"The warm server of {self.process.args!r:.80} is gone: {error}."
            ) from error
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_FRAME_BYTES)
        connection = RemoteConnection(
            reader, writer, address=f"fork:{number}", why_lost=child.why_lost
        )
        connection.name, connection.version = self.manifest["name"], self.manifest["version"]
        low, high = self.manifest["reward_range"]
        connection.reward_range = (low, high)
        # Every child is the same program: the first one's tools are everyone's.
        connection.tools = self.tools or await connection.list_tools()
        self.tools = connection.tools
        child.connection = connection
        return child

    async def _send(self, request: bytes, descriptor: int) -> None:
        while True:
            try:
                socket.send_fds(self.control, [request], [descriptor])
            except BlockingIOError:
                await asyncio.sleep(0.001)
            else:
                return

    def say(self, message: dict[str, Any]) -> None:
        """Send a message; a server that is gone has killed what it would be asked to."""
        with contextlib.suppress(OSError):
            self.control.send(orjson.dumps(message))

    def limits_of(self, number: int) -> dict[str, Any]:
        """Return the limits of a child."""
        return self._limits[number]

    def forget(self, number: int) -> None:
        """A child is over."""
        self._children.pop(number, None)
        self._limits.pop(number, None)

    def stop(self) -> None:
        """Kill the server; its children die with it."""
        atexit.unregister(self.stop)
        self.dead = True
        with contextlib.suppress(RuntimeError, ValueError):
            self.loop.remove_reader(self.control)
        self.control.close()
        try:
            self.process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _hear(self) -> None:
        try:
            data = self.control.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._died()
            return
        message = orjson.loads(data)
        if "ready" in message:
            self.manifest = message["ready"]
            self._ready.set_result(None)
        elif "failed" in message:
            self._ready.set_exception(UsageError(message["failed"]))
        elif "ended" in message:
            child = self._children.get(message["ended"])
            if child is not None and not child.ended.done():
                child.ended.set_result(message)

    def _died(self) -> None:
        self.dead = True
        self.loop.remove_reader(self.control)
        status = self.process.poll()
        if not self._ready.done():
            self._ready.set_exception(
                EnvironmentFault(f"The environment's server ended at once (status {status}).")
            )
        for child in self._children.values():
            if not child.ended.done():
                child.ended.set_result(
                    {"status": status or 1, "said": "the warm server died", "limit": None}
                )


def _path_of(source: str | Path | Environment) -> str:
    if not isinstance(source, Environment):
        return str(source)
    path = source.source_file
    if path is None or not os.path.exists(path):
        raise UsageError(
            f"Environment {source.name!r} was not made in a file, so no other process can load it; write it to a "
            "file and pass its path, or use LocalRuntime."
        )
    return path
