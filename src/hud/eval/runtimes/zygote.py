"""The warm server behind `ForkRuntime`: it has imported the environment, and forks a child for each rollout.

Single-threaded and without an event loop, so that forking it is safe and cheap. It talks with the process
that started it over a socket of messages (file descriptor 3):

    in   {"fork": n, "memory_mb", "cpu_seconds", "wall_seconds"} and the child's end of a stream; {"kill": n}
    out  {"ready": {...}} or {"failed": "sentence"}; {"ended": n, "status", "limit", "said"}

When that socket ends, everything here is killed. A child that ends takes its whole process group with it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import random
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

import orjson

from hud.environment.channel.framing import MAX_FRAME_BYTES
from hud.environment.channel.server import ControlServer
from hud.environment.environment import Environment
from hud.environment.loading import load_environment
from hud.errors import HudError

CONTROL = 3
MESSAGE_BYTES = 1 << 16
_SAID_BYTES = 2000
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Child:
    """A rollout's process."""

    number: int
    pid: int
    output: int
    """Memory file of what it prints."""
    deadline: float
    limit: str | None = None
    """Which limit it was killed for."""


class Zygote:
    """Forks, watches and reaps."""

    def __init__(self, environment: Environment, control: socket.socket) -> None:
        self.environment = environment
        self.control = control
        self.children: dict[int, Child] = {}

    def serve(self) -> None:
        """Work until the other side is gone."""
        wake_read, wake_write = os.pipe()
        for end in (wake_read, wake_write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        self.say({"ready": _manifest(self.environment)})
        while True:
            for descriptor, _ in poller.poll(self._wait()):
                if descriptor == wake_read:
                    os.read(wake_read, 4096)
                elif not self._hear():
                    return
            self._enforce()
            self._reap()

    def say(self, message: dict[str, Any]) -> None:
        """Send a message; a listener that is gone is noticed by the next read."""
        try:
            self.control.send(orjson.dumps(message))
        except (BrokenPipeError, ConnectionError):
            return

    def kill_all(self) -> None:
        """Kill every child and what it started."""
        for child in self.children.values():
            _kill_group(child.pid)

    def _hear(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES, 1)
        if not data:
            return False
        message = orjson.loads(data)
        if "fork" in message:
            self._fork(message, descriptors[0])
        elif (child := self._numbered(message["kill"])) is not None:
            _kill_group(child.pid)
        return True

    def _fork(self, request: dict[str, Any], stream: int) -> None:
        output = os.memfd_create("output", os.MFD_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            _be_child(self.environment, request, stream, output)
        os.close(stream)
        seconds = request.get("wall_seconds")
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        self.children[pid] = Child(request["fork"], pid, output, deadline)

    def _numbered(self, number: int) -> Child | None:
        return next((child for child in self.children.values() if child.number == number), None)

    def _wait(self) -> float | None:
        """Return how long nothing can happen, in milliseconds."""
        soonest = min((child.deadline for child in self.children.values()), default=float("inf"))
        return (
            None if soonest == float("inf") else max(0.0, (soonest - time.monotonic()) * 1000) + 1
        )

    def _enforce(self) -> None:
        now = time.monotonic()
        for child in self.children.values():
            if child.deadline <= now:
                child.limit, child.deadline = "wall_seconds", float("inf")
                _kill_group(child.pid)

    def _reap(self) -> None:
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self.children.pop(pid, None)
            if child is None:
                continue
            _kill_group(pid)  # What it started and left behind.
            code = os.waitstatus_to_exitcode(status)
            limit = "cpu_seconds" if code == -signal.SIGXCPU else child.limit
            size = os.fstat(child.output).st_size
            said = os.pread(child.output, _SAID_BYTES, max(0, size - _SAID_BYTES))
            os.close(child.output)
            self.say(
                {
                    "ended": child.number,
                    "status": code,
                    "limit": limit,
                    "said": said.decode("utf-8", "replace"),
                }
            )


def _be_child(environment: Environment, request: dict[str, Any], stream: int, output: int) -> None:
    """Serve one rollout over `stream`, then leave without running anything of the parent's."""
    status = 1
    try:
        os.setsid()
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(CONTROL, CONTROL + 1)
        _limit(request)
        random.seed()
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed()
        asyncio.run(_serve(environment, socket.socket(fileno=stream)))
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


async def _serve(environment: Environment, stream: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=stream, limit=MAX_FRAME_BYTES)
    server = ControlServer(environment)
    await server.connected(reader, writer)
    await server.close()


def _limit(request: dict[str, Any]) -> None:
    if request.get("memory_mb") is not None:
        # Address space beyond what forking brought along: the limit is on what the rollout itself takes.
        with open("/proc/self/statm", encoding="ascii") as file:
            inherited = int(file.read().split()[0]) * resource.getpagesize()
        most = inherited + request["memory_mb"] * (1 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if request.get("cpu_seconds") is not None:
        soft = max(1, round(request["cpu_seconds"]))
        resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 1))


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        # Not yet its own group's leader, or all of it gone.
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def _manifest(environment: Environment) -> dict[str, Any]:
    return {
        "name": environment.name,
        "version": environment.version,
        "reward_range": environment.reward_range,
        "pid": os.getpid(),
    }


def main() -> None:
    """Load the environment, and serve."""
    control = socket.socket(fileno=CONTROL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us.
    try:
        environment = load_environment(sys.argv[1])
    except HudError as error:
        control.send(orjson.dumps({"failed": str(error)[: MESSAGE_BYTES // 2]}))
        return
    gc.collect()
    gc.freeze()  # The children's collector then leaves the shared pages alone.
    zygote = Zygote(environment, control)
    try:
        zygote.serve()
    finally:
        zygote.kill_all()


if __name__ == "__main__":
    main()
