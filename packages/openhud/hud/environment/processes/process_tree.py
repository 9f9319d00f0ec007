"""Process tree: the descendants of a process, from `/proc`. Linux only."""

from __future__ import annotations

import os
import sys
from collections.abc import Container, Iterator
from typing import NamedTuple

_ENDED = (b"Z", b"X")
_ALL_KINDS = 0x40000000
"""`__WALL` of waitid(2): also children that do not send SIGCHLD at their end."""


class Process(NamedTuple):
    """Identity of a process; its id alone may be another process's later."""

    pid: int
    started: int
    """Start time, in clock ticks since the machine's boot."""


class Seen(NamedTuple):
    """State of a process."""

    process: Process
    name: str
    parent: int
    ended: bool
    """True for a zombie without running threads."""


def seen(pid: int) -> Seen | None:
    """Return the state of a process; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            head, _, rest = file.read().rpartition(b")")
    except OSError:
        return None
    fields = rest.split()
    # A first thread that has exited is a zombie, too, while others of its process run.
    ended = fields[0] in _ENDED and int(fields[17]) <= 1
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return Seen(Process(pid, int(fields[19])), name, int(fields[1]), ended)


def has_children() -> bool:
    """Return whether this process has any child, ended ones included; one system call, and no list of them.

    True where the system call is not Linux's.
    """
    if sys.platform != "linux":
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _ALL_KINDS)
    except ChildProcessError:
        return False
    return True


def children(pid: int) -> list[int]:
    """Return the children of a process, of all its threads."""
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                pids += map(int, file.read().split())
    except FileNotFoundError:
        if os.path.exists(f"/proc/{pid}") and not os.path.exists(
            f"/proc/{pid}/task/{pid}/children"
        ):
            return [entry.process.pid for entry in _everything() if entry.parent == pid]
    except OSError:
        pass  # It has exited.
    return pids


def descendants(root: int, without: Container[Process] = ()) -> Iterator[Seen | None]:
    """Yield the descendants of `root`, without processes in `without` and those below them.

    Yields None for a process that exited meanwhile: its children have another parent by now, and may have been missed.
    """
    parents = [root]
    while parents:
        for pid in children(parents.pop()):
            descendant = seen(pid)
            if descendant is None or descendant.process not in without:
                yield descendant
                parents.append(pid)


def all_descendants(root: int, without: Container[Process] = ()) -> list[Seen]:
    """Return the same from a list of all processes: slower, and complete where lists of children change while being read."""
    below: dict[int, list[Seen]] = {}
    for entry in _everything():
        below.setdefault(entry.parent, []).append(entry)
    descended, parents = [], [root]
    while parents:
        for entry in below.get(parents.pop(), ()):
            if entry.process not in without:
                descended.append(entry)
                parents.append(entry.process.pid)
    return descended


def _everything() -> Iterator[Seen]:
    for name in os.listdir("/proc"):
        entry = seen(int(name)) if name.isdigit() else None
        if entry is not None:
            yield entry
