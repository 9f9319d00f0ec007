"""An interpreter that serves an environment over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from hud.environment.channel.client.remote_connection import Loss, RemoteConnection
from hud.environment.processes.process_tree import children
from hud.environment.processes.reaper import kill, reaped_command, signalled
from hud.errors import EnvironmentFault, UsageError
from hud.eval.runtimes.interpreter import Interpreter
from hud.eval.runtimes.process_loss import MemoryShortage, loss_of
from hud.processes.child import Child
from hud.processes.tail import Tail

_ANNOUNCED = b"HUD_SERVE_PORT="
_RESUME_SECONDS = 1.0
_END_SECONDS = 5.0
_NOT_LOADED = 2
"""Exit status of a server that could not load its environment."""


class ServedProcess:
    """A process that serves an environment on a local port, with its output."""

    def __init__(
        self,
        source: str,
        child: Child,
        errors: Tail,
        output: asyncio.StreamReader,
        on_output: Callable[[bytes], None],
        *,
        one_run: bool,
    ) -> None:
        self.source = source
        self.child = child
        self.one_run = one_run
        self._errors = errors
        self._shortage = MemoryShortage()
        self._announced: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # To the end: a full pipe would block the environment.
        self._reading = asyncio.create_task(self._find_port(output, on_output))
        self._resuming = asyncio.create_task(self._keep_resuming())

    @classmethod
    async def start(
        cls,
        source: str,
        interpreter: Interpreter | None = None,
        *,
        one_run: bool = False,
        on_output: Callable[[bytes], None] = lambda printed: None,
    ) -> ServedProcess:
        """Start a server, in this process's Python or in another; `on_output` receives its output.

        `one_run`: what the first run's tools leave running ends before its grade.
        """
        python = sys.executable if interpreter is None else str(interpreter.python)
        command = [python, "-u", "-m", "hud.environment.channel", source, "--follow-stdin"]
        child = Child(
            # A run's call can stop its process, which would hold up the grade until the time limit.
            reaped_command([*command, "--one-run"] if one_run else command, end_stopped=one_run),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if interpreter is None else interpreter.variables,
        )
        try:
            errors, output = await child.errors(on_output), await child.output()
        except BaseException:
            await child.end()
            raise
        return cls(source, child, errors, output, on_output, one_run=one_run)

    @property
    def pid(self) -> int:
        """Id of the environment's process, below the one that ends what it leaves."""
        return next(iter(children(self.child.pid)), self.child.pid)

    async def port(self, timeout: float) -> int:
        """Wait until the environment reports its port.

        Raises `UsageError` for a source that cannot be loaded, `EnvironmentFault` after the time-out.
        """
        try:
            async with asyncio.timeout(timeout):
                either: list[asyncio.Future[Any]] = [self._announced, self._reading]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise EnvironmentFault(f"{self.source} did not come up within {timeout:g} s.") from None
        if self._announced.done():
            return self._announced.result()
        reason = (await self.why_lost()).reason
        if self.child.status == _NOT_LOADED:
            raise UsageError((await self._errors.text()).strip())
        raise EnvironmentFault(f"{self.source} did not come up: {reason}.")

    async def connect(self, timeout: float) -> RemoteConnection:
        """Connect for a run, once the environment listens; each step has a time-out of `timeout` seconds."""
        port = await self.port(timeout)
        connection = await RemoteConnection.dial("127.0.0.1", port, ready_timeout=timeout)
        connection.why_lost = self.why_lost
        return connection

    async def why_lost(self) -> Loss:
        """Return a description of the process's end, with its last output."""
        try:
            async with asyncio.timeout(2.0):
                status = signalled(await self.child.ended())
        except TimeoutError:
            return Loss("it closed its connection, but runs on", alone=self.one_run)
        words = await self._errors.text()
        lacked_memory = self._shortage.is_recent
        return loss_of(status, words, alone=self.one_run, lacked_memory=lacked_memory)

    async def end(self, patience: float = 0.0) -> None:
        """Kill the process and its descendants, after `patience` seconds in which its shutdown hooks may end."""
        try:
            if patience and self.child.status is None:
                self._signal_environment(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(patience):
                        await self.child.ended()
        finally:
            if self.child.status is None:
                self._signal_environment(signal.SIGKILL)
                self.child.signal(signal.SIGTERM)  # The reaper kills what is left, daemons too.
            await self.child.end(_END_SECONDS)
            self._reading.cancel()
            self._resuming.cancel()
            await asyncio.wait({self._reading, self._resuming})

    def _signal_environment(self, number: signal.Signals) -> None:
        for pid in children(self.child.pid):
            kill(pid, number)

    async def _keep_resuming(self) -> None:
        """Resume the process that watches the environment's, each second: a run that stopped both would hold up its grade."""
        while self.child.status is None:
            self.child.signal(signal.SIGCONT)
            self._shortage.observe()
            await asyncio.sleep(_RESUME_SECONDS)

    async def _find_port(
        self, stream: asyncio.StreamReader, on_output: Callable[[bytes], None]
    ) -> None:
        heard = b""
        while chunk := await stream.read(65536):
            if self._announced.done():
                on_output(chunk)
                continue
            heard += chunk
            *lines, heard = heard.split(b"\n")
            for line in lines:
                if line.startswith(_ANNOUNCED) and not self._announced.done():
                    self._announced.set_result(int(line.removeprefix(_ANNOUNCED)))
                else:
                    on_output(line + b"\n")
            if self._announced.done():
                on_output(heard)
