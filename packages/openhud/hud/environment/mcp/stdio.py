"""An MCP server as a child process, connected by pipes, and stopped with its descendants."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp import types
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from hud.environment.mcp.config import ServerConfig
from hud.environment.processes.reaper import GRACE_SECONDS, kill, reaped_command
from hud.environment.processes.run_processes import start_of_part
from hud.errors import EnvironmentFault

_PIECE = 1 << 16
_LONGEST = 256 * 1024 * 1024
_REMEMBERED_LINES = 30
_LEAVE_SECONDS = 1.0
"""Time to exit after its input was closed, in seconds; then SIGTERM, then SIGKILL."""
_NOTICE_SECONDS = 2.0


class ServerProcess:
    """A program; `transport()` is the official client's transport, for a single use."""

    def __init__(self, name: str, config: ServerConfig) -> None:
        self.name = name
        self.config = config
        self._process: asyncio.subprocess.Process | None = None
        self._said: deque[str] = deque(maxlen=_REMEMBERED_LINES)
        self._stopping = False

    @property
    def ended(self) -> bool:
        """True if it exited unexpectedly."""
        process = self._process
        return process is not None and process.returncode is not None and not self._stopping

    async def why_ended(self) -> str | None:
        """Return its exit status and last output; None while it runs."""
        process = self._process
        if process is None or self._stopping:
            return None
        await _exits(process, _NOTICE_SECONDS)
        return self.last_words()

    def last_words(self) -> str | None:
        """Return its exit status and last output, or None if it still runs."""
        if not self.ended:
            return None
        assert self._process is not None
        status = self._process.returncode or 0
        number = -status if status < 0 else status - 128
        try:
            ended = f"it was killed by {signal.Signals(number).name}"
        except ValueError:
            ended = f"it ended with status {status}"
        words = " / ".join(line for line in list(self._said)[-3:] if line.strip())
        return f"{ended}; it said: {words}" if words else ended

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Any]:
        """Start the program; on exit kill it and its descendants."""
        process = self._process = await self._start()
        inward, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, outward = anyio.create_memory_object_stream[SessionMessage](0)
        listening = asyncio.create_task(self._listen(process))
        receiving = asyncio.create_task(_receive(process, inward, self._said))
        work = [listening, receiving, asyncio.create_task(_send(process, outward))]
        try:
            yield read, write
        finally:
            try:
                if receiving.done() and not receiving.cancelled():
                    # Its output ended by itself: wait briefly for the exit status.
                    await asyncio.wait({listening}, timeout=_LEAVE_SECONDS)
                    await _exits(process, _LEAVE_SECONDS)
                self._stopping = process.returncode is None
                await _stop(process)
            finally:
                for task in work:
                    task.cancel()
                for stream in (read, write, inward, outward):
                    stream.close()
                await asyncio.wait(work)

    async def _start(self) -> asyncio.subprocess.Process:
        variables = {**get_default_environment(), **self.config.env}
        return await start_of_part(
            *reaped_command(_command_line(self.config, variables)),
            env=variables,
            cwd=self.config.cwd,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Keep its standard error, for the reason of an exit."""
        assert process.stderr is not None
        rest = b""
        while piece := await process.stderr.read(_PIECE):
            *lines, rest = (rest + piece)[-_PIECE:].split(b"\n")
            self._said.extend(line.decode("utf-8", "replace").rstrip() for line in lines)
        if rest:
            self._said.append(rest.decode("utf-8", "replace").rstrip())


def _command_line(config: ServerConfig, variables: dict[str, str]) -> list[str]:
    """Return the executable; raises `EnvironmentFault` if it does not exist."""
    assert config.command is not None
    executable = shutil.which(config.command, path=variables.get("PATH"))
    if executable is None:
        raise EnvironmentFault(
            f"there is no command {config.command!r}; install it, or give its path"
        )
    if config.cwd is not None and not Path(config.cwd).is_dir():
        raise EnvironmentFault(f"there is no folder {config.cwd} to start it in")
    return [str(Path(executable).absolute()), *config.args]


async def _receive(
    process: asyncio.subprocess.Process, inward: Any, skipped_lines: deque[str]
) -> None:
    """Forward its output, one message per line. Other lines, which some servers print, are skipped."""
    assert process.stdout is not None
    parts: list[bytes] = []
    size = 0
    async with inward:
        while piece := await process.stdout.read(_PIECE):
            size += len(piece)
            if size > _LONGEST:
                skipped_lines.append(f"(a message of more than {_LONGEST:,} bytes)")
                return
            if b"\n" not in piece:
                parts.append(piece)
                continue
            *lines, rest = b"".join([*parts, piece]).split(b"\n")
            parts, size = [rest], len(rest)
            for line in lines:
                if not line.strip():
                    continue
                try:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    skipped_lines.append(line[:500].decode("utf-8", "replace"))
                    continue
                try:
                    await inward.send(SessionMessage(message))
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return


async def _send(process: asyncio.subprocess.Process, outward: Any) -> None:
    assert process.stdin is not None
    async with outward:
        async for outgoing in outward:
            text = outgoing.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
            except (ConnectionError, RuntimeError):
                return  # It has exited; the session ends at its closed output.


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Stop the program: close its input, then terminate its reaper, then kill it."""
    assert process.stdin is not None
    process.stdin.close()
    for seconds, number in (
        (_LEAVE_SECONDS, signal.SIGTERM),
        (GRACE_SECONDS + 1.0, signal.SIGKILL),
        (_NOTICE_SECONDS, signal.SIGKILL),
    ):
        try:
            if await _exits(process, seconds):
                break
        except asyncio.CancelledError:
            kill(process.pid, signal.SIGTERM)  # The reaper ends the program.
            raise
        kill(process.pid, number)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


async def _exits(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Wait for the process only (`wait()` would wait for its pipes, too)."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while process.returncode is None and clock() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return process.returncode is not None
