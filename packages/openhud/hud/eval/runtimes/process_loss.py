"""The end of an environment's process during a run, as the loss of its connection."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from hud.environment.channel.client.remote_connection import Loss
from hud.errors import InfrastructureFault
from hud.eval.runtimes.interpreter import told_exit

_RECENT_SECONDS = 1.0
"""Least age of the count that is compared, in seconds: a process's end is noticed later than the kill."""


def loss_of(status: int, output: str, *, lacked_memory: bool, alone: bool = True) -> Loss:
    """Return the loss by a process's exit (`status` as in `subprocess`), with its last `output`.

    `lacked_memory`: the kernel has just killed processes of this machine for want of memory.
    `alone`: the process served one run.
    """
    if status == -signal.SIGKILL and lacked_memory:
        reason = f"{told_exit(status, '')}, as this machine had no memory left"
        return Loss(reason, InfrastructureFault)
    return Loss(told_exit(status, output), alone=alone)


class MemoryShortage:
    """Kills for want of memory on this machine in the last moments; an earlier one explains no end of a process.

    Any agent can cause one, in its workspace or outside, and send SIGKILL to its environment later.
    """

    def __init__(self) -> None:
        self._counts = [(time.monotonic(), oom_kills())]

    def observe(self) -> None:
        """Note the count; call it about each second."""
        now = time.monotonic()
        self._counts.append((now, oom_kills()))
        while len(self._counts) > 1 and now - self._counts[1][0] >= _RECENT_SECONDS:
            del self._counts[0]

    @property
    def is_recent(self) -> bool:
        """True if the kernel killed a process since the last count of that age."""
        return oom_kills() != self._counts[0][1]


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
