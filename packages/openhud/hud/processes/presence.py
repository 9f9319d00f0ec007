"""Identity of a process, for checks whether it still runs."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from hud.trace import new_id


def process_started(pid: int) -> str | None:
    """Return the start time of a local process, in clock ticks; None if it has exited or is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    # After the command, which may contain spaces and brackets: state is field 1, start time field 20.
    # A zombie counts as exited.
    return None if fields[0] in "ZX" else fields[19]


def process_lives(pid: int, started: str | None) -> bool:
    """Return True while the local process with this id and start time runs."""
    if started:
        return process_started(pid) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def presence(role: str) -> str:
    """Return a name of this process, for `is_gone`."""
    started = process_started(os.getpid()) or ""
    return f"{role}/{socket.gethostname()}/{os.getpid()}/{started}/{new_id()[:8]}"


def is_gone(name: str) -> bool:
    """Return True if the named process ran on this machine and has exited; False if it runs or is unknown."""
    try:
        _, host, pid, started, _ = name.split("/")
        return host == socket.gethostname() and not process_lives(int(pid), started or None)
    except ValueError:
        return False


def command_line() -> str:
    """Return the command line of this process, shortened."""
    words = [Path(sys.argv[0]).name or "python", *sys.argv[1:]]
    text = " ".join(words)
    return text if len(text) <= 100 else text[:99] + "…"
