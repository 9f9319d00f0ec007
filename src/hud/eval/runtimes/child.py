"""Main program of a process forked for one rollout: set its limits, serve the rollout, exit.

Isolation from the server that forked it: no exit handlers, no shared random state, no descriptors of other rollouts. Half
of its processor time is the kernel's copying of memory pages that it touches, so it calls few functions.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import ctypes
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hud.environment.channel.framing import PRIVATE_FRAME_BYTES
from hud.environment.channel.lazy_loop import LazyLoop
from hud.environment.channel.private_stream import PrivateStream
from hud.environment.channel.server.control_server import ControlServer
from hud.environment.processes.reaper import PR_SET_PDEATHSIG
from hud.environment.processes.run_processes import adopt_orphans
from hud.eval.runtimes.rehearsal import Rehearsal

_EXIT_NICENESS = 10
"""Lower priority gathers exiting processes (at 19, sixty of them where there are ten), a higher one delays rollouts."""
_libc = ctypes.CDLL(None, use_errno=True)


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
        os.setpgid(0, 0)
        _die_with(parent)
        adopt_orphans()
        # The functions in C: those of `signal` convert to enumerations and back.
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        _redirect(output)
        os.dup2(stream, place, inheritable=False)
        for first, end in foreign:
            os.closerange(first, end)
        _bound(limits)
        _reseed()
        if rehearsal is not None:
            rehearsal.play(waits=True)
        served = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, place)
        # The loop is not closed, which takes a third of a millisecond: the process exits anyway.
        server.serve_alone(PrivateStream(served, PRIVATE_FRAME_BYTES, loop), loop)
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


def _leave(status: int, stream: int) -> None:
    """Close all descriptors but those of the output, and exit."""
    try:
        # The peer goes on at the end of the stream: what this run held open is free by then.
        os.closerange(3, stream)
        os.closerange(stream + 1, os.sysconf("SC_OPEN_MAX"))
        os.closerange(stream, stream + 1)
        # What is left is the kernel's work: rollouts go before.
        os.nice(_EXIT_NICENESS)
        os.sched_yield()
    finally:
        os._exit(status)


def _die_with(parent: int) -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # The parent exited before PR_SET_PDEATHSIG was set.


def _redirect(output: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)


def _bound(limits: Limits) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.memory_mb is not None:
        # In addition to the inherited address space: the limit applies to the rollout's own memory.
        with open("/proc/self/statm", encoding="ascii") as file:
            inherited = int(file.read().split()[0]) * resource.getpagesize()
        most = inherited + int(limits.memory_mb * (1 << 20))
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if limits.cpu_seconds is not None:
        seconds = max(1, math.ceil(limits.cpu_seconds))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def _reseed() -> None:
    """Seed the random generators of this rollout; all children inherit the same state.

    Python seeds those of `random` itself after a fork.
    """
    modules: dict[str, Any] = sys.modules
    if "numpy" in modules:
        modules["numpy"].random.seed()
    if "torch" in modules:
        modules["torch"].seed()
