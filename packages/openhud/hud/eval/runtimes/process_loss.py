"""The end of an environment's process during a run, as the loss of its connection."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hud.environment.channel.client.remote_connection import Loss
from hud.errors import InfrastructureFault
from hud.eval.runtimes.interpreter import told_exit

_CRASHES = frozenset(
    map(int, (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT))
)
"""Signals by which a fault of the environment's own code ends its process; a program sends the others."""


def loss_of(status: int, output: str, *, lacked_memory: bool, alone: bool = True) -> Loss:
    """Return the loss by a process's exit (`status` as in `subprocess`), with its last `output`.

    `lacked_memory`: the kernel has killed processes of this machine for want of memory since the process started.
    `alone`: the process served one run.
    """
    if status == -signal.SIGKILL and lacked_memory:
        reason = f"{told_exit(status, '')}, as this machine had no memory left"
        return Loss(reason, InfrastructureFault)
    killed = status < 0 and -status not in _CRASHES
    return Loss(told_exit(status, output), alone=alone, killed=killed)


def oom_kills() -> int:
    """Return how many processes the kernel of this machine has killed for want of memory; 0 where it does not tell."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    counts = dict(line.split() for line in lines)
    return int(counts.get("oom_kill", 0))


def takes_most_memory(peak_bytes: int) -> bool:
    """Return whether a process has held more than half of this machine's memory: its own calls left none."""
    return 2 * peak_bytes > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
