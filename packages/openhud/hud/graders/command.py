"""A shell command, run to its end or its time limit, together with its child processes.

Works on processes and pipes; independent of scores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hud.errors import GraderFault

OUTPUT_KEPT = 4000
"""Bytes kept of the end of the output: a command may print without end, and memory is bounded."""
_DRAIN_SECONDS = 1.0
"""Time-out for reading the rest of a pipe, in seconds; a process outside the process group may hold it open."""
_BASH = "/bin/bash"
_PASSED = frozenset(
    [
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TERM",
        "TMPDIR",
        "VIRTUAL_ENV",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
    ]
)


@dataclass(frozen=True)
class CommandOutcome:
    """Result of a command; `exit_code` is None if it was killed at its time limit."""

    exit_code: int | None
    stdout: str
    stderr: str
    signalled: bool = False
    """True if a signal ended it in a workspace; `exit_code` is then 128 and the signal's number."""


async def run_command(
    command: str, cwd: str | Path | None, seconds: float, env: Mapping[str, str] | None = None
) -> CommandOutcome:
    """Run `command` in bash, and kill its process group at the end. Raises `GraderFault` if it cannot be started.

    Its variables are `env` and those of `clean_environment`.
    """
    async with _tail() as (out, out_fd), _tail() as (err, err_fd):
        try:
            process = await asyncio.create_subprocess_exec(
                _BASH,
                "--noprofile",
                "--norc",
                "-c",
                command,
                cwd=cwd,
                env={**clean_environment(), **(env or {})},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out_fd,
                stderr=err_fd,
                start_new_session=True,
            )
        except OSError as error:
            raise GraderFault(f"The command {command[:80]!r} could not be run: {error}.") from error
        finally:
            os.close(out_fd)
            os.close(err_fd)
        exit_code = None
        try:
            async with asyncio.timeout(seconds):
                # Wait for the process, not for the end of its output: a background server holds the pipes open.
                exit_code = await process.wait()
        except TimeoutError:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        await asyncio.wait([out.closed, err.closed], timeout=_DRAIN_SECONDS)
        return CommandOutcome(exit_code, out.text(), err.text())


def clean_environment() -> dict[str, str]:
    """Return the variables of this process that a command needs: no secrets, and none that run or import other code.

    Relative folders of `PATH` are left out: they would lead into the command's folder, where an agent's files may be.
    """
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name.startswith("LC_")
    }
    folders = os.get_exec_path()
    return {**passed, "PATH": os.pathsep.join(filter(os.path.isabs, folders))}


class _Tail(asyncio.Protocol):
    """Buffer of the end of a pipe's output."""

    def __init__(self) -> None:
        self.kept = bytearray()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.kept += data[-OUTPUT_KEPT:]
        del self.kept[:-OUTPUT_KEPT]

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self.closed.done():
            self.closed.set_result(None)

    def text(self) -> str:
        return self.kept.decode("utf-8", "replace")


@contextlib.asynccontextmanager
async def _tail() -> AsyncIterator[tuple[_Tail, int]]:
    """Yield the buffer of a pipe's output, and the descriptor to write to; the caller closes it."""
    reading, writing = os.pipe()
    transport, tail = await asyncio.get_running_loop().connect_read_pipe(
        _Tail, os.fdopen(reading, "rb", 0)
    )
    try:
        yield tail, writing
    finally:
        transport.close()
