"""A shell command, run to its end or its time limit, together with its child processes.

Works on processes and pipes; independent of scores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hud.errors import GraderFault
from hud.processes.child import Child

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
    try:
        child = Child(
            [_BASH, "--noprofile", "--norc", "-c", command],
            cwd=cwd,
            env={**clean_environment(), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise GraderFault(f"The command {command[:80]!r} could not be run: {error}.") from error
    async with child:
        stdout, stderr = await child.printed(), await child.errors()
        exit_code = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                # Wait for the process, not for the end of its output: a background server holds the pipes open.
                exit_code = await child.ended()
        child.kill()
        return CommandOutcome(exit_code, *await asyncio.gather(stdout.text(), stderr.text()))


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
