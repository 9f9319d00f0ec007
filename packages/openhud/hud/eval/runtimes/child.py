"""Main program of a process forked for one rollout: set its limits, serve the rollout, exit.

Isolation from the server that forked it: no exit handlers, no shared random state, no descriptors of other rollouts.
"""

from __future__ import annotations

import asyncio
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from hud.environment import Environment
from hud.environment.channel.framing import PRIVATE_FRAME_BYTES
from hud.environment.channel.server.control_server import ControlServer
from hud.environment.processes.reaper import PR_SET_PDEATHSIG
from hud.environment.processes.run_processes import adopt_orphans, prctl


@dataclass(frozen=True)
class Limits:
    """Resource limits of a rollout; None: no limit."""

    memory_mb: float | None = None
    cpu_seconds: float | None = None
    wall_seconds: float | None = None


def serve_and_exit(
    environment: Environment,
    limits: Limits,
    *,
    parent: int,
    stream: int,
    output: int,
    foreign: Iterable[int],
) -> None:
    """Serve a rollout of `environment` over the socket `stream`, with output to `output`; never returns.

    `parent` is the process with which to exit; `foreign` are the descriptors of the server and of other rollouts.
    """
    status = 1
    try:
        os.setpgid(0, 0)
        _exit_with(parent)
        adopt_orphans()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _redirect(output)
        for descriptor in foreign:
            os.close(descriptor)
        _bound(limits)
        _reseed()
        # Not `asyncio.run`, which waits for the threads of tools.
        asyncio.new_event_loop().run_until_complete(_serve(environment, stream))
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
        print(f"SystemExit: {error.code}", file=sys.stderr)
    except KeyboardInterrupt:
        # From a process of the rollout: the terminal's Ctrl-C goes to another group. Ends as other signals do.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


async def _serve(environment: Environment, stream: int) -> None:
    server = ControlServer(environment, max_frame=PRIVATE_FRAME_BYTES, one_run=True)
    reader, writer = await asyncio.open_unix_connection(
        sock=socket.socket(fileno=stream), limit=PRIVATE_FRAME_BYTES
    )
    await server.connected(reader, writer)
    await server.close()


def _exit_with(parent: int) -> None:
    assert prctl is not None
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # The parent exited before PR_SET_PDEATHSIG was set.


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
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
