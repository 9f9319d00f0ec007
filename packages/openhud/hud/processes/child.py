"""`Child`: a child process in a session of its own, from its start to its reaping, for threads and event loops.

Starting is synchronous, so that no cancellation can lose a started process. Its waits leave its pipes alone: what it started may
hold them open for longer than it lives.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar

from hud.processes.tail import Tail

P = TypeVar("P", bound=asyncio.Protocol)
LOOK_SECONDS = 0.01
"""Interval of looks at a process where the kernel has no pidfd, in seconds."""


class Child:
    """A process group; `async with` kills and reaps it at the end."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        descriptors: Collection[int] = (),
    ) -> None:
        """Start it; it inherits `descriptors` besides its standard streams. Raises `OSError`."""
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            env=env,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=descriptors,
            start_new_session=True,  # Ctrl-C signals this process alone.
        )
        self.pid = self._process.pid
        """Its id, and that of its process group."""
        self._transports: list[asyncio.BaseTransport] = []
        self._killed = False

    @property
    def status(self) -> int | None:
        """Exit status as in `subprocess` (negative: a signal); None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Signal it alone; no effect after its end."""
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end, and return its status; cancelling the wait does not end it."""
        try:
            handle = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # No such call, or it was reaped.
            while self.status is None:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)
            return self._process.wait()
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(handle, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
        return self._process.wait()

    def kill(self) -> None:
        """Kill its process group, once: what it left there, too."""
        if not self._killed:
            self._killed = True
            with suppress(ProcessLookupError, PermissionError):  # macOS refuses for a zombie.
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self, patience: float = 0.0) -> int:
        """Give it `patience` seconds to end, kill its group, and close its pipes; returns its status."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self.kill()
        for transport in self._transports:
            transport.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return self._process.wait()

    async def end(self, patience: float = 0.0) -> int:
        """`reap` on an event loop; where the caller is cancelled, without patience."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self.ended()
            self.kill()
            return await self.ended()
        finally:
            self.reap()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.end()

    async def errors(self, on_output: Callable[[bytes], None] | None = None) -> Tail:
        """Follow its standard error, to its end or `end`."""
        return await self._follow(self._process.stderr, partial(Tail, on_output))

    async def printed(self, on_output: Callable[[bytes], None] | None = None) -> Tail:
        """Follow its standard output, to its end or `end`."""
        return await self._follow(self._process.stdout, partial(Tail, on_output))

    async def output(self, limit: int = 1 << 16) -> asyncio.StreamReader:
        """Return a reader of its standard output, which ends with `end`."""
        reader = asyncio.StreamReader(limit)
        await self._follow(self._process.stdout, lambda: asyncio.StreamReaderProtocol(reader))
        return reader

    async def input(self) -> asyncio.WriteTransport:
        """Return a writer of its standard input, which buffers without a limit."""
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(
            asyncio.Protocol, self._process.stdin
        )
        self._transports.append(transport)
        return transport

    async def _follow(self, pipe: IO[bytes] | None, protocol: Callable[[], P]) -> P:
        loop = asyncio.get_running_loop()
        transport, reader = await loop.connect_read_pipe(protocol, pipe)
        self._transports.append(transport)
        return reader
