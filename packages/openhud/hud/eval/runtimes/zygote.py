"""The warm server behind `ForkRuntime`: it has imported the environment, and forks a child for each rollout.

Single-threaded and without an event loop, so that forking is safe and cheap. It communicates with its parent process by
JSON messages over a socket:

    in   {"fork": n, "limits": {...}} with the child's end of its stream; {"kill": n}
    out  {"ready": true} with a memory file of the manifest, or {"failed": "sentence"};
         {"forked": n, "pid"}; {"refused": n, "why"}; {"ended": n, "status", "limit", "peak_bytes", "said"}

At the end of that socket all processes are killed. At the end of a child its descendants are killed.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hud import exact_json
from hud.environment.environment import Environment
from hud.environment.processes.reaper import children, kill
from hud.environment.processes.run_processes import adopt_orphans
from hud.environment.processes.secret_variables import withhold_secrets
from hud.environment.sources.loader import load_environment
from hud.errors import HudError
from hud.eval.runtimes.child import Limits, serve_and_exit

MESSAGE_BYTES = 1 << 16
_TAIL_BYTES = 4000
_DRAIN_BYTES = 1 << 20
_SWEEP_SECONDS = 0.02
"""Least time between two searches for descendants of ended children."""


@dataclass
class Child:
    """A rollout's process."""

    number: int
    pid: int
    limits: Limits
    output: int
    """Reading end of its output pipe."""
    tail: bytes = b""
    """Its last output."""
    killed_for: str | None = None
    """The exceeded limit, or None."""

    def listen(self) -> bool:
        """Read its output, and keep the tail; returns False at the end."""
        taken = 0
        with suppress(BlockingIOError):
            while taken < _DRAIN_BYTES:
                chunk = os.read(self.output, 1 << 16)
                if not chunk:
                    return False
                taken += len(chunk)
                self.tail = (self.tail + chunk)[-_TAIL_BYTES:]
        return True

    def passed_limit(self, status: int, cpu_seconds: float) -> str | None:
        """Return the limit for which it was killed."""
        most = self.limits.cpu_seconds
        if most is None:
            return self.killed_for  # Any program can send the signals.
        if status == -signal.SIGXCPU:
            return "cpu_seconds"
        if status == -signal.SIGKILL and cpu_seconds >= most:
            return self.killed_for or "cpu_seconds"
        return self.killed_for


class Zygote:
    """Server that forks, supervises and reaps children."""

    def __init__(self, environment: Environment, control: socket.socket) -> None:
        self.control = control
        self.environment = environment
        self.children: dict[int, Child] = {}
        self.outputs: dict[int, Child] = {}
        self.deadlines: dict[int, float] = {}
        """Ends of the children's time, on the monotonic clock, by process."""
        self.swept = 0.0
        """Time of the last search for descendants of ended children."""
        self.to_sweep = False
        self.own = set(children())
        """Processes started by the environment's import; they live as long as this process."""
        self.wake, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.poller = select.epoll()
        self.poller.register(control, select.EPOLLIN)
        self.poller.register(self.wake, select.EPOLLIN)

    def serve(self) -> None:
        """Serve until the parent disconnects."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        while True:
            for descriptor, _ in self.poller.poll(self._wait()):
                if descriptor == self.wake:
                    os.read(self.wake, 4096)
                elif descriptor in self.outputs:
                    if not self.outputs[descriptor].listen():
                        self._ignore(descriptor)
                elif descriptor == self.control.fileno() and not self._hear():
                    return
            self._enforce()
            self._reap()

    def say(self, message: dict[str, Any]) -> None:
        """Send a message; a disconnected peer is detected by the next read."""
        with suppress(ConnectionError):
            self.control.send(exact_json.dumps(message))

    def end(self) -> None:
        """Kill all descendants, and exit."""
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            for child in self.children.values():
                _kill_group(child.pid)
            for pid in children():
                kill(pid, signal.SIGKILL)
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.002)
            except ChildProcessError:
                break
        os.killpg(0, signal.SIGKILL)

    def _hear(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES, 1)
        except ConnectionError:
            return False
        if not data:
            return False
        message = exact_json.loads(data)
        if "fork" in message:
            try:
                self._fork(message["fork"], Limits(**message["limits"]), descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        else:
            for child in self.children.values():
                if child.number == message["kill"]:
                    _kill_group(child.pid)
        return True

    def _fork(self, number: int, limits: Limits, streams: list[int]) -> None:
        """Fork a child, and report it; `streams` is empty where this process can open no more files."""
        if not streams:
            self.say({"refused": number, "why": "too many open files"})
            return
        parent = os.getpid()
        try:
            output, written = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            self.say({"refused": number, "why": str(error)})
            return
        try:
            pid = os.fork()
            if pid == 0:
                serve_and_exit(
                    self.environment,
                    limits,
                    parent=parent,
                    stream=streams[0],
                    output=written,
                    foreign=[*self._descriptors(), output],
                )
        except OSError as error:  # Out of memory or processes.
            os.close(output)
            self.say({"refused": number, "why": str(error)})
            return
        finally:
            os.close(written)
        self._supervise(Child(number, pid, limits, output))
        self.say({"forked": number, "pid": pid})

    def _descriptors(self) -> list[int]:
        """Return this process's own descriptors, and those of all children's outputs."""
        own = [self.control.fileno(), self.poller.fileno(), self.wake, self._wake_write]
        return [*own, *self.outputs]

    def _supervise(self, child: Child) -> None:
        os.set_blocking(child.output, False)
        self.poller.register(child.output, select.EPOLLIN)
        self.children[child.pid] = self.outputs[child.output] = child
        if child.limits.wall_seconds is not None:
            self.deadlines[child.pid] = time.monotonic() + child.limits.wall_seconds

    def _wait(self) -> float | None:
        """Return the time until the next deadline, in seconds."""
        if not self.deadlines and not self.to_sweep:
            return None
        soonest = min(self.deadlines.values(), default=float("inf"))
        if self.to_sweep:
            soonest = min(soonest, self.swept + _SWEEP_SECONDS)
        return max(0.0, soonest - time.monotonic()) + 0.001

    def _enforce(self) -> None:
        if not self.deadlines:
            return
        now = time.monotonic()
        for pid in [pid for pid, deadline in self.deadlines.items() if deadline <= now]:
            del self.deadlines[pid]
            self.children[pid].killed_for = "wall_seconds"
            _kill_group(pid)

    def _reap(self) -> None:
        """Reap exited processes, and kill their remaining descendants; a rollout that a signal has stopped is killed."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                if pid in self.children:
                    _kill_group(pid)
                continue
            self.to_sweep = True
            child = self.children.pop(pid, None)
            if child is not None:
                self.deadlines.pop(pid, None)
                with suppress(ProcessLookupError):  # None of its group is left.
                    os.killpg(pid, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(status)
                self._tell_end(child, code, usage)
        if self.to_sweep and time.monotonic() - self.swept >= _SWEEP_SECONDS:
            self._sweep()

    def _sweep(self) -> None:
        """Kill descendants of ended children, which are this process's now.

        Not after each of many quickly ending children: the kernel lists all processes each time.
        """
        self.to_sweep, self.swept = False, time.monotonic()
        for pid in children():
            if pid not in self.children and pid not in self.own:
                kill(pid, signal.SIGKILL)

    def _ignore(self, output: int) -> None:
        """Stop polling an output, if it is polled.

        Closing it is not enough: the poller would report it while a child that begins still holds a copy, as the output of
        the next child, which has the same number.
        """
        with suppress(FileNotFoundError):
            self.poller.unregister(output)

    def _tell_end(self, child: Child, status: int, usage: resource.struct_rusage) -> None:
        child.listen()
        self._ignore(child.output)
        del self.outputs[child.output]
        os.close(child.output)
        self.say(
            {
                "ended": child.number,
                "status": status,
                "limit": child.passed_limit(status, usage.ru_utime + usage.ru_stime),
                "peak_bytes": usage.ru_maxrss << 10,
                "said": child.tail.decode("utf-8", "replace"),
            }
        )


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        kill(pid, signal.SIGKILL)  # Not its group's leader yet, or all members have exited.


def _publish(environment: Environment, control: socket.socket) -> None:
    manifest = {
        "name": environment.name,
        "version": environment.version,
        "reward_range": environment.reward_range,
        "offers": bool(
            environment.parts or environment.capabilities or environment.initialize_hooks
        ),
        # Parts add tools for each run.
        "tools": None
        if environment.parts
        else [spec.model_dump() for spec in environment.tool_specs],
    }
    file = os.memfd_create("manifest")
    with open(file, "wb", closefd=False) as writer:
        writer.write(exact_json.dumps(manifest))
    socket.send_fds(control, [b'{"ready": true}'], [file])
    os.close(file)


def main(source: str) -> None:
    """Serve the environment at `source`; standard input is the control socket."""
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent process handles Ctrl-C.
    withhold_secrets()
    try:
        environment = load_environment(source)
    except Exception as error:
        reason = str(error) if isinstance(error, HudError) else f"{source}: {error!r}"
        control.send(exact_json.dumps({"failed": reason[: MESSAGE_BYTES // 4]}))
        return
    adopt_orphans()
    zygote = Zygote(environment, control)
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # The children's collector then does not touch the shared pages.
    try:
        try:
            _publish(environment, control)
        except OSError as error:  # Of this machine, and not of the environment, which is imported.
            zygote.say({"machinery": str(error)})
            return
        zygote.serve()
    except Exception:
        sys.excepthook(*sys.exc_info())  # Now: this process is killed with all others.
    finally:
        zygote.end()
