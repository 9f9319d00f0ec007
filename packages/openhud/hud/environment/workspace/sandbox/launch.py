"""`Launch`: the start and the end of a sandbox. bubblewrap starts one, unless the workspace's image brings a launch of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress

from hud.environment.processes.run_processes import start_of_part
from hud.environment.workspace.sandbox.bubblewrap import Plan, command
from hud.environment.workspace.sandbox.cgroups import ControlGroup
from hud.environment.workspace.sandbox.lacking import warn_without_groups, warn_without_landlock
from hud.environment.workspace.sandbox.limits import MB
from hud.environment.workspace.sandbox.mounts import SEARCH_PATH


def by_itself(status: int | None) -> bool:
    """Return True if a program in bubblewrap exited without SIGKILL from outside, to it or to bubblewrap."""
    return status is not None and status >= 0 and status != 128 + signal.SIGKILL


class Launch(ABC):
    """A sandbox of one plan; to be started once, and ended whether or not its start succeeded."""

    seconds = 30.0
    """Time-out of the start, in seconds."""
    process: asyncio.subprocess.Process | None = None
    """Process that ends with the sandbox, and whose standard error says why it could not start."""
    user: int | None = None
    """Owner of the sandbox's files; None: this process's user."""

    @abstractmethod
    async def start(self) -> socket.socket:
        """Start the sandbox, and return the socket to its supervisor. Raises `EnvironmentFault`."""

    @abstractmethod
    async def end(self) -> None:
        """Kill all its processes, and free its resources, after the socket was closed."""

    @property
    def ended_by_itself(self) -> bool:
        """True if its process 1 exited and was not killed from outside."""
        return self.process is not None and by_itself(self.process.returncode)

    @abstractmethod
    def memory_ran_out(self) -> bool:
        """Return True if the kernel killed one of its processes for lack of memory."""


class BubblewrapLaunch(Launch):
    """A sandbox of bubblewrap, in a control group of its own where there are any."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.group: ControlGroup | None = None
        self._handle = -1

    async def start(self) -> socket.socket:
        limits = self.plan.limits
        self.group = ControlGroup.create(
            int(limits.memory_mb * MB), limits.processes, limits.processors
        )
        if self.group is None:
            warn_without_groups()
        warn_without_landlock()
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            await self._start(theirs)
        except BaseException:
            control.close()
            raise
        finally:
            theirs.close()
        return control

    async def _start(self, theirs: socket.socket) -> None:
        with ExitStack() as stack:
            groups = [] if self.group is None else self.group.entrances(stack)
            planned = command(self.plan, theirs.fileno(), stack, groups)
            self.user = planned.user
            starting = asyncio.ensure_future(
                start_of_part(
                    *planned.arguments,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    pass_fds=planned.descriptors,
                    cwd=planned.start_folder,
                    env={
                        "PATH": SEARCH_PATH
                    },  # Not this process's variables: they may contain keys.
                    start_new_session=True,
                )
            )
            try:
                self.process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # asyncio, cancelled while it connects the pipes, would wait for all that have them; `end` ends those.
                self.process = await starting
                raise
        with suppress(ProcessLookupError):  # It may have exited; its output has the reason.
            self._handle = os.pidfd_open(self.process.pid)

    async def end(self) -> None:
        if self.process is not None:
            if self.process.returncode is None:
                # While bubblewrap starts, its death does not end its child, which would wait for it and keep the pipe.
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
            with suppress(OSError):
                # By pidfd: asyncio's child watcher and its own kill may race for the exit status.
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            await self.process.wait()
            with suppress(OSError):
                os.close(self._handle)
        if self.group is not None:
            await asyncio.to_thread(self.group.remove)

    def memory_ran_out(self) -> bool:
        return self.group is not None and self.group.memory_ran_out()
