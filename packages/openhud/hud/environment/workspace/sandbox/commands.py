"""Commands of the environment in a sandbox: setup, checks, graders.

They use the agent's files only: their own `PATH` and home folder, and no start-up files.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import PurePosixPath

from hud.environment.workspace.sandbox.bubblewrap import Plan
from hud.environment.workspace.sandbox.mounts import GUARD, SYSTEM_PATH
from hud.environment.workspace.sandbox.pipes import Outgoing
from hud.environment.workspace.sandbox.sandbox import Sandbox
from hud.graders.command import CommandOutcome

_OWN = {
    "PATH": SYSTEM_PATH,
    "HOME": "/nonexistent",
    "PYTHONNOUSERSITE": "1",
    # Compiled files of the agent may differ from their sources.
    "PYTHONPYCACHEPREFIX": "/nonexistent",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_START_UP = [
    "BASH_ENV",
    "ENV",
    "LD_PRELOAD",
    "LD_AUDIT",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
]
_OPTIONS = [
    "PERL5OPT",
    "RUBYOPT",
    "NODE_OPTIONS",
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "JDK_JAVA_OPTIONS",
]
"""Variables with files that a program executes or obeys when it starts, and with options that may name such files."""
_PLAIN_PATH = re.compile(r"(?:/(?!\.\.?(?:/|$))[\w.+-]+)+")
"""Absolute path without variables and ways upwards."""
_LIBRARIES = ":".join(
    f"{folder}{place}"
    for place in (f"/{platform.machine()}-linux-gnu", "64", "")
    for folder in ("/lib", "/usr/lib")
)
"""Folders of the machine's libraries."""
_GONE = 137
"""Exit status of a killed command, for commands in a workspace that its agent ended."""


class _Kept:
    """Buffer of the last bytes written."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()

    def take(self, data: bytes) -> None:
        self._kept += data[-self._most :]
        del self._kept[: -self._most]

    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")


async def run_inside(
    sandbox: Sandbox,
    argv: Sequence[str],
    *,
    seconds: float,
    kept_bytes: int,
    variables: Mapping[str, str] | None = None,
) -> CommandOutcome:
    """Run `argv` to its end or for `seconds`; the last `kept_bytes` of stdout and of stderr are kept."""
    out, err = _Kept(kept_bytes), _Kept(kept_bytes)
    status = await execute(sandbox, argv, None, out.take, err.take, seconds, variables)
    signalled = status is not None and status < 0
    exit_code = 128 - status if status is not None and signalled else status
    return CommandOutcome(exit_code, out.text(), err.text(), signalled)


def _own(sandbox: Sandbox, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the environment's commands.

    A declared `PYTHONPATH` follows the guard, and a declared `LD_LIBRARY_PATH` the machine's folders. An image's programs are
    the agent's to change, so that its start-up files are, too.
    """
    image, declared = sandbox.plan.image, {**sandbox.plan.variables, **variables}
    if image is None:
        own = {**_OWN, **dict.fromkeys(_start_up(sandbox.plan), ""), **variables}
        if libraries := declared.get("LD_LIBRARY_PATH"):
            own["LD_LIBRARY_PATH"] = f"{_LIBRARIES}:{libraries}"
    else:
        own = {**_OWN, "PATH": image.variables["PATH"], **variables}
    modules = declared.get("PYTHONPATH")
    own["PYTHONPATH"] = f"{GUARD}:{modules}" if modules else GUARD
    return own


def _start_up(plan: Plan) -> Iterator[str]:
    """Yield the declared variables that may lead to files which the agent can write."""
    fixed = ("/usr", "/etc", *(mount.target for mount in plan.mounts))
    for name in (*_START_UP, *_OPTIONS):
        value = plan.variables.get(name, "")
        names_file = name in _START_UP or any(folder in value for folder in plan.writable)
        is_fixed = _PLAIN_PATH.fullmatch(value) and any(
            PurePosixPath(value).is_relative_to(folder) for folder in fixed
        )
        if value and names_file and not is_fixed:
            yield name


async def execute(
    sandbox: Sandbox,
    argv: Sequence[str],
    reading: int | None,
    take: Callable[[bytes], None],
    take_errors: Callable[[bytes], None],
    seconds: float,
    variables: Mapping[str, str] | None = None,
) -> int | None:
    """Run `argv` with standard input from `reading`; returns its exit status, below 0 for a signal, None after a time-out."""
    outputs: list[Outgoing] = []
    with ExitStack() as theirs:
        if reading is None:
            reading = os.open(os.devnull, os.O_RDONLY)
            theirs.callback(os.close, reading)
        descriptors = [reading]
        for consumer in (take, take_errors):
            ours, writing = os.pipe()
            theirs.callback(os.close, writing)
            descriptors.append(writing)
            outputs.append(await Outgoing.read(ours, consumer))
        try:
            process = await sandbox.spawn(
                argv,
                descriptors,
                environment=_own(sandbox, variables or {}),
                group_ends=True,
            )
        except OSError as error:
            for output in outputs:
                output.close()
            take_errors(f"The workspace refuses: {error.strerror or error}\n".encode())
            return _GONE
    status: int | None = None
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                status = await process.wait()
        for output in outputs:
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await output.drained()
    finally:
        process.signal(signal.SIGKILL)
        for output in outputs:
            output.close()
    return status
