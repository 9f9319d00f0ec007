"""Commands that a build runs: each a process group that ends with the build, however that ends."""

from __future__ import annotations

import asyncio
import codecs
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hud.errors import UsageError
from hud.processes.child import Child
from hud_platform.environments.build_log import BuildLog, Tail

# The server may be killed where it cannot clean up; the kernel then ends the command. Linux only; elsewhere it runs out.
_TIED = (
    "import ctypes,os,sys;"
    "ctypes.CDLL(None).prctl(1,9,0,0,0);"
    "os.getppid()==int(sys.argv[1]) or sys.exit('The server is gone.');"
    "os.execvp(sys.argv[2],sys.argv[2:])"
)
_PIECE = 1 << 16
_LONGEST_LINE = 1 << 16


async def run(
    command: Sequence[str],
    variables: Mapping[str, str],
    log: BuildLog,
    folder: Path | None = None,
    *,
    quiet: bool = False,
) -> None:
    """Run a command, its output to the log; with `quiet`, only the end of it, and only where it fails.

    Raises `UsageError` with its last line for a status other than 0. A cancelled call ends its whole group.
    """
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]
    tail = Tail()
    async with Child(
        command, cwd=folder, env=dict(variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as child:
        reading = asyncio.create_task(_read(await child.output(), tail, None if quiet else log))
        status = await child.ended()
        child.kill()  # What it leaves behind may hold its output open.
        await reading
    if status != 0:
        if quiet:
            await log.say(*(line for line in tail.lines if line.strip()))
        raise UsageError(tail.reason() or f"{Path(command[-1]).name} ended with status {status}.")


async def _read(stream: asyncio.StreamReader, tail: Tail, log: BuildLog | None) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while piece := await stream.read(_PIECE):
        *lines, rest = (rest + decoder.decode(piece)).split("\n")
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], ""
        await _take(lines, tail, log)
    await _take([rest], tail, log)


async def _take(lines: list[str], tail: Tail, log: BuildLog | None) -> None:
    # Of a progress bar, what it showed last.
    shown = [line.rstrip().rpartition("\r")[2] for line in lines]
    shown = [line for line in shown if line]
    tail.lines.extend(shown)
    if log is not None and shown:
        await log.say(*shown)
