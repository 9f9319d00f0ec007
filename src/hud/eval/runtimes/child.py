"""Main program of a process forked for one rollout: set its limits, serve the rollout, exit.

Isolation from the server that forked it: no exit handlers, no shared random state, no descriptors of other rollouts. Half
of its processor time is the kernel's copying of memory pages that it touches, so it calls few functions, and by names of this
module: an attribute of a module, looked up once, writes to the interpreter's cache of attributes.
"""

from __future__ import annotations

import sys

# The functions in C: those of `signal` convert to enumerations and back.
from _signal import (  # type: ignore[import-not-found]
    SIG_DFL,
    SIGCHLD,
    SIGINT,
    SIGKILL,
    default_int_handler,
    set_wakeup_fd,
    signal,
)
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from math import ceil
from os import (
    O_RDONLY,
    _exit,
    close,
    closerange,
    devnull,
    dup2,
    getppid,
    nice,
    sched_yield,
    setpgid,
    sysconf,
)
from os import open as open_descriptor
from resource import RLIMIT_AS, RLIMIT_CORE, RLIMIT_CPU, getpagesize, setrlimit
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any

from hud.environment.channel.framing import PRIVATE_FRAME_BYTES
from hud.environment.channel.lazy_loop import LazyLoop
from hud.environment.channel.private_stream import PrivateStream
from hud.environment.channel.server.control_server import ControlServer
from hud.environment.processes.reaper import PR_SET_PDEATHSIG
from hud.environment.processes.run_processes import adopt_orphans, prctl
from hud.eval.runtimes.rehearsal import Rehearsal

_EXIT_NICENESS = 10
"""Lower priority gathers exiting processes (at 19, sixty of them where there are ten), a higher one delays rollouts."""
_modules: dict[str, Any] = sys.modules


@dataclass(frozen=True)
class Limits:
    """Resource limits of a rollout; None: no limit."""

    memory_mb: float | None = None
    cpu_seconds: float | None = None
    wall_seconds: float | None = None


def live_and_leave(
    server: ControlServer,
    loop: LazyLoop,
    limits: Limits,
    *,
    parent: int,
    stream: int,
    place: int,
    output: int,
    rehearsal: Rehearsal | None,
    foreign: Iterable[tuple[int, int]],
) -> None:
    """Serve a rollout over `stream` by `server` on `loop`, with output to `output`; never returns.

    `rehearsal`, if any, is played first; `parent` is the process with which to exit. The stream moves to the descriptor `place`,
    the server's control socket; `foreign` are ranges of descriptors to close, those of the server and of all rollouts.
    """
    status = 1
    try:
        setpgid(0, 0)
        _die_with(parent)
        adopt_orphans()
        set_wakeup_fd(-1)
        signal(SIGCHLD, SIG_DFL)
        signal(SIGINT, default_int_handler)
        _redirect(output)
        dup2(stream, place, inheritable=False)
        for first, end in foreign:
            closerange(first, end)
        _bound(limits)
        _reseed()
        if rehearsal is not None:
            rehearsal.play(waits=True)
        served = socket(AF_UNIX, SOCK_STREAM, 0, place)
        # The loop is not closed, which takes a third of a millisecond: the process exits anyway.
        private = PrivateStream(served, PRIVATE_FRAME_BYTES, loop)
        server.serve_alone(private, loop, partial(_release, place))
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
        print(f"SystemExit: {error.code}", file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            _leave(status, place)


def _release(stream: int) -> None:
    """Close all descriptors but those of the output and the stream."""
    closerange(3, stream)
    closerange(stream + 1, sysconf("SC_OPEN_MAX"))


def _leave(status: int, stream: int) -> None:
    """Close all descriptors but those of the output, and exit."""
    try:
        # The peer goes on at the end of the stream: what this run held open is free by then.
        _release(stream)
        closerange(stream, stream + 1)
        # What is left is the kernel's work: rollouts go before.
        nice(_EXIT_NICENESS)
        sched_yield()
    finally:
        _exit(status)


def _die_with(parent: int) -> None:
    assert prctl is not None
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if getppid() != parent:
        _exit(1)  # The parent exited before PR_SET_PDEATHSIG was set.


def _redirect(output: int) -> None:
    nothing = open_descriptor(devnull, O_RDONLY)
    dup2(nothing, 0)
    dup2(output, 1)
    dup2(output, 2)
    close(nothing)


def _bound(limits: Limits) -> None:
    setrlimit(RLIMIT_CORE, (0, 0))
    if limits.memory_mb is not None:
        # In addition to the inherited address space: the limit applies to the rollout's own memory.
        with open("/proc/self/statm", encoding="ascii") as file:
            inherited = int(file.read().split()[0]) * getpagesize()
        most = inherited + int(limits.memory_mb * (1 << 20))
        setrlimit(RLIMIT_AS, (most, most))
    if limits.cpu_seconds is not None:
        seconds = max(1, ceil(limits.cpu_seconds))
        setrlimit(RLIMIT_CPU, (seconds, seconds + 1))


def _reseed() -> None:
    """Seed the random generators of this rollout; all children inherit the same state.

    Python seeds those of `random` itself after a fork.
    """
    if "numpy" in _modules:
        _modules["numpy"].random.seed()
    if "torch" in _modules:
        _modules["torch"].seed()
