"""Identity of a process, by which another one can tell whether it still runs."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from hud.trace import new_id


def process_started(pid: int) -> str | None:
    """Return when a process of this machine started, as its kernel counts; None if it is gone or unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    # After the command, which may itself hold spaces and brackets: state is the first, start time the 20th.
    # Killed, and not yet waited for by its parent: gone.
    return None if fields[0] in "ZX" else fields[19]


def process_lives(pid: int, started: str | None) -> bool:
    """True while the process of this machine lives that had this id when it `started`."""
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
    """Return a name for this process that `is_gone` understands."""
    started = process_started(os.getpid()) or ""
    return f"{role}/{socket.gethostname()}/{os.getpid()}/{started}/{new_id()[:8]}"


def is_gone(name: str) -> bool:
    """True where the process of a name was on this machine and is no more; False where that cannot be known."""
    try:
        _, host, pid, started, _ = name.split("/")
        return host == socket.gethostname() and not process_lives(int(pid), started or None)
    except ValueError:
        return False


def command_line() -> str:
    """Return the command line of this process, short enough to read."""
    words = [Path(sys.argv[0]).name or "python", *sys.argv[1:]]
    text = " ".join(words)
    return text if len(text) <= 100 else text[:99] + "…"
