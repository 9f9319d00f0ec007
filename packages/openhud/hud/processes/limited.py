"""Modules run in a process with limits of memory and processor time, for input whose cost is unknown."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from resource import RLIMIT_CORE, RLIMIT_CPU, RLIMIT_DATA, setrlimit


def run_limited(
    module: str,
    *arguments: str,
    memory: int,
    seconds: int,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a module, which calls `enter_limits` first, to its end; `memory` in bytes, `seconds` of processor time.

    `variables` are added to its environment. Its temporary files are removed, also where a limit ends it.
    """
    command = [sys.executable, "-m", module, str(memory), str(seconds), *arguments]
    # Each thread of numpy would reserve memory of its own.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **(variables or {})}
    with tempfile.TemporaryDirectory(prefix="hud-limited-") as folder:
        environment["TMPDIR"] = folder
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def enter_limits() -> list[str]:
    """Take over the limits that `run_limited` gave to this process; returns the other arguments."""
    memory, seconds, *arguments = sys.argv[1:]
    setrlimit(RLIMIT_CORE, (0, 0))
    # Not RLIMIT_AS: files are mapped, and torch maps its libraries.
    setrlimit(RLIMIT_DATA, (int(memory), int(memory)))
    setrlimit(RLIMIT_CPU, (int(seconds), int(seconds)))
    return arguments
