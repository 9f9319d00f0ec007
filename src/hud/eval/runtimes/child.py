"""Main program of a process forked for one rollout: set its limits, serve the rollout, exit.

Nothing of the server that forked it may run here: no exit handlers, no shared random state, no way to the
other rollouts.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import random
import resource
import signal
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hud.environment.channel.framing import PRIVATE_FRAME_BYTES
from hud.environment.channel.server.control_server import ControlServer
from hud.environment.environment import Environment
from hud.environment.processes.reaper import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Limits:
    """Resource limits of one rollout; None: no limit."""

    memory_mb: float | None = None
    cpu_seconds: float | None = None
    wall_seconds: float | None = None


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parents end, so that it can end them too."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def live_and_leave(
    environment: Environment,
    limits: Limits,
    *,
    parent: int,
    stream: int,
    output: int,
    foreign: Iterable[int],
) -> None:
    """Serve one rollout over `stream`, its output going to `output`; never returns.

    `parent` is the process to die with; `foreign` are the descriptors that are its own and other rollouts'.
    """
    status = 1
    try:
        os.setsid()
        _die_with(parent)
        adopt_orphans()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor in foreign:
            os.close(descriptor)
        _redirect(output)
        _bound(limits)
        _reseed()
        # Not asyncio.run: what it tidies up ends with the process, a third of a millisecond sooner.
        loop = asyncio.new_event_loop()
        loop.run_until_complete(serve_stream(environment, socket.socket(fileno=stream)))
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
            os._exit(status)


async def serve_stream(environment: Environment, stream: socket.socket) -> None:
    """Serve the one rollout at the other end of a stream, until that end hangs up."""
    reader, writer = await asyncio.open_connection(sock=stream, limit=PRIVATE_FRAME_BYTES)
    server = ControlServer(environment, max_frame=PRIVATE_FRAME_BYTES)
    await server.connected(reader, writer)
    await server.close()


def _die_with(parent: int) -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # It died before the kernel was told.


def _redirect(output: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)
    os.close(output)


def _bound(limits: Limits) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.memory_mb is not None:
        # Address space beyond what forking brought along: the limit is on what the rollout itself takes.
        with open("/proc/self/statm", encoding="ascii") as file:
            inherited = int(file.read().split()[0]) * resource.getpagesize()
        most = inherited + int(limits.memory_mb * (1 << 20))
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if limits.cpu_seconds is not None:
        seconds = max(1, math.ceil(limits.cpu_seconds))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def _reseed() -> None:
    """Give this rollout its own randomness; every child was forked with the same."""
    random.seed()
    modules: dict[str, Any] = sys.modules
    if "numpy" in modules:
        modules["numpy"].random.seed()
    if "torch" in modules:
        modules["torch"].seed()
