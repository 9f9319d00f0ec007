"""`Sandbox`: a workspace's processes and files, controlled from outside.

It exchanges packets with the supervisor inside; independent of SSH and runs. Its processes end with it, and it ends with
this process, also after a crash; its files are in memory only.
"""

from __future__ import annotations

import array
import asyncio
import errno
import os
import signal
import socket
import stat
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import count

from hud.environment.processes.run_processes import start_of_part
from hud.environment.workspace.sandbox.bubblewrap import Plan, as_user, command
from hud.environment.workspace.sandbox.cgroups import ControlGroup
from hud.environment.workspace.sandbox.lacking import (
    explained,
    warn_without_groups,
    warn_without_landlock,
)
from hud.environment.workspace.sandbox.limits import MB
from hud.environment.workspace.sandbox.mounts import HOME, SEARCH_PATH, USER
from hud.errors import EnvironmentFault

START_SECONDS = 30.0
_PACKET_BYTES = 1 << 18
_LAST_WORDS_BYTES = 2000
_LAST_WORDS_SECONDS = 2.0
_ENVIRONMENT = {
    "PATH": SEARCH_PATH,
    "HOME": HOME,
    "USER": USER,
    "LOGNAME": USER,
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
}


def by_itself(status: int | None) -> bool:
    """Return True if a program in bubblewrap exited without SIGKILL from outside, to it or to bubblewrap."""
    return status is not None and status >= 0 and status != 128 + signal.SIGKILL


class Process:
    """A process in a sandbox."""

    def __init__(self, sandbox: Sandbox, number: int) -> None:
        self._sandbox = sandbox
        self.number = number
        self.ended: asyncio.Future[int] = sandbox.loop.create_future()
        """Its exit status; negative: the signal that killed it."""

    async def wait(self) -> int:
        """Wait for its end; cancelling the wait does not end it."""
        return await asyncio.shield(self.ended)

    def signal(self, number: int) -> None:
        """Signal it and its group; no effect after its end."""
        if not self.ended.done():
            self._sandbox.tell("signal", "", self.number, number)


class Sandbox:
    """A started sandbox; to be closed with `close`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = asyncio.get_running_loop()
        self.folder = -1
        """A descriptor of the workspace's folder. Its files are the agent's: follow no links."""
        self.user: int | None = None
        """Owner of the sandbox's files; None: this process's user."""
        self.problem: str | None = None
        """Reason of the sandbox's end; None while it runs."""
        self._control, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[tuple[str | None, list[int]]]] = {}
        """Responses awaited: the reason of a refusal, and descriptors."""
        self._processes: dict[int, Process] = {}
        self._up: asyncio.Future[None] = self.loop.create_future()
        self._bubblewrap: asyncio.subprocess.Process | None = None
        self._handle = -1
        self._words = b""
        self._listening: asyncio.Task[None] | None = None
        self._group: ControlGroup | None = None

    @classmethod
    async def start(cls, plan: Plan) -> Sandbox:
        """Start a sandbox; raises `EnvironmentFault` with the reason of a failure."""
        sandbox = cls(plan)
        try:
            async with asyncio.timeout(START_SECONDS):
                await sandbox._start()
        except BaseException as error:
            await sandbox.close()
            if isinstance(error, TimeoutError):
                raise EnvironmentFault(
                    f"A workspace's sandbox was not up within {START_SECONDS:g} s."
                ) from None
            raise
        return sandbox

    async def spawn(
        self,
        argv: Sequence[str],
        descriptors: Sequence[int],
        *,
        environment: dict[str, str] | None = None,
        group_ends: bool = False,
    ) -> Process:
        """Start a process on three descriptors, which the caller closes; raises `OSError`.

        `group_ends`: kill its process group at its end.
        """
        process, _ = await self._spawn(argv, descriptors, None, environment, group_ends)
        return process

    async def spawn_on_terminal(
        self,
        argv: Sequence[str],
        size: tuple[int, int],
        *,
        environment: dict[str, str] | None = None,
    ) -> tuple[Process, int]:
        """Start a process on a new terminal of (rows, columns); returns the terminal's master descriptor, too."""
        process, passed = await self._spawn(argv, (), size, environment)
        return process, passed[0]

    async def listen(self, address: str, port: int) -> socket.socket:
        """Listen at an address of the workspace's loopback, accepting in this process."""
        passed = await self._ask("listen", address, port)
        return socket.socket(fileno=passed[0])

    async def dial(self, port: int) -> socket.socket:
        """Connect to a port of the workspace's loopback; raises `OSError`."""
        passed = await self._ask("dial", port)
        dialled = socket.socket(fileno=passed[0])
        dialled.setblocking(False)
        connected = asyncio.Event()
        self.loop.add_writer(dialled, connected.set)
        try:
            await connected.wait()
            problem = dialled.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if problem:
                raise OSError(problem, os.strerror(problem))
        except BaseException:
            self.loop.remove_writer(dialled)
            dialled.close()
            raise
        self.loop.remove_writer(dialled)
        return dialled

    @property
    def ended_by_itself(self) -> bool:
        """True if its process 1 exited and was not killed from outside."""
        return self._bubblewrap is not None and by_itself(self._bubblewrap.returncode)

    def memory_ran_out(self) -> bool:
        """Return True if the kernel killed one of its processes for lack of memory."""
        return self._group is not None and self._group.memory_ran_out()

    async def kill_all(self) -> None:
        """Kill all its processes; its files stay."""
        if self.problem is None:
            await self._ask("kill_all")

    def tell(self, *fields: str | int, descriptors: Sequence[int] = ()) -> None:
        """Send a packet without waiting for a response; raises `OSError` for fields that no packet can hold."""
        rights = array.array("i", descriptors)
        attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        packet = _packet(fields)
        with suppress(ConnectionError):
            self._control.sendmsg([packet], attached)

    async def close(self) -> None:
        """Kill all its processes and free its resources; a cancelled caller still waits for it."""
        closing = asyncio.ensure_future(self._close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await closing
            raise

    async def _close(self) -> None:
        self._over("The workspace is closed.")
        self.loop.remove_reader(self._control)
        self._control.close()
        self._theirs.close()
        if self._bubblewrap is not None:
            if self._bubblewrap.returncode is None:
                # While bubblewrap starts, its death does not end its child, which would wait for it and keep the pipe.
                with suppress(ProcessLookupError):
                    os.killpg(self._bubblewrap.pid, signal.SIGKILL)
            with suppress(OSError):
                # By pidfd: asyncio's child watcher and its own kill may race for the exit status.
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            await self._bubblewrap.wait()
            with suppress(OSError):
                os.close(self._handle)
        if self._listening is not None:
            self._listening.cancel()
        if self.folder != -1:
            os.close(self.folder)
            self.folder = -1
        if self._group is not None:
            await asyncio.to_thread(self._group.remove)

    async def _start(self) -> None:
        limits = self.plan.limits
        self._group = ControlGroup.create(
            int(limits.memory_mb * MB), limits.processes, limits.processors
        )
        if self._group is None:
            warn_without_groups()
        warn_without_landlock()
        with ExitStack() as stack:
            groups = [] if self._group is None else self._group.entrances(stack)
            planned = command(self.plan, self._theirs.fileno(), stack, groups)
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
                    **as_user(planned.user),
                )
            )
            try:
                self._bubblewrap = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # asyncio, cancelled while it connects the pipes, would wait for all that have them; `close` ends those.
                self._bubblewrap = await starting
                raise
        self._theirs.close()
        with suppress(ProcessLookupError):  # It may have exited; its output has the reason.
            self._handle = os.pidfd_open(self._bubblewrap.pid)
        self._listening = asyncio.ensure_future(self._listen(self._bubblewrap))
        self.loop.add_reader(self._control, self._hear)
        await self._up

    async def _spawn(
        self,
        argv: Sequence[str],
        descriptors: Sequence[int],
        size: tuple[int, int] | None,
        environment: dict[str, str] | None,
        group_ends: bool = False,
    ) -> tuple[Process, list[int]]:
        if self.user is not None:
            for descriptor in descriptors:
                if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                    os.fchown(descriptor, self.user, self.user)  # For /dev/stdout.
        number = next(self._numbers)
        process = Process(self, number)
        self._processes[number] = process
        variables = {**_ENVIRONMENT, **self.plan.variables, **(environment or {})}
        fields = [
            "group" if group_ends else "",
            *(("", "") if size is None else size),
            self.plan.folder,
            len(argv),
            *argv,
            *(f"{name}={value}" for name, value in variables.items()),
        ]
        try:
            return process, await self._ask(
                "spawn", *fields, descriptors=descriptors, number=number
            )
        except OSError:
            self._processes.pop(number, None)
            raise

    async def _ask(
        self,
        do: str,
        *fields: str | int,
        descriptors: Sequence[int] = (),
        number: int | None = None,
    ) -> list[int]:
        """Send a request to the supervisor; returns the descriptors of its response. Raises `OSError` for a refusal."""
        if self.problem is not None:
            raise OSError(self.problem)
        number = next(self._numbers) if number is None else number
        answer: asyncio.Future[tuple[str | None, list[int]]] = self.loop.create_future()
        self._answers[number] = answer
        try:
            self.tell(do, number, *fields, descriptors=descriptors)
            refused, passed = await answer
        finally:
            del self._answers[number]
        if refused is not None:
            raise OSError(refused)
        return passed

    def _hear(self) -> None:
        """Process received packets."""
        while True:
            try:
                packet, attached, _, _ = self._control.recvmsg(_PACKET_BYTES, socket.CMSG_SPACE(4))
            except (BlockingIOError, ConnectionError):
                return
            if not packet:
                self.loop.remove_reader(self._control)
                # Bubblewrap exits, too, and may print the reason.
                self.loop.call_later(_LAST_WORDS_SECONDS, self._over, "Its process 1 ended.")
                return
            passed = [
                descriptor
                for level, kind, data in attached
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
                for descriptor in array.array("i", data)
            ]
            self._take(packet, passed)

    def _take(self, packet: bytes, passed: list[int]) -> None:
        """Process a packet; the sandbox is untrusted, so that anything else than expected is ignored."""
        kind, _, rest = packet.partition(b"\0")
        number, _, detail = rest.partition(b"\0")
        if kind == b"up" and passed and not self._up.done():
            self.folder = passed.pop()
            self._up.set_result(None)
        elif kind == b"ended":
            process = self._processes.pop(_number(number), None)
            if process is not None and not process.ended.done():
                process.ended.set_result(_number(detail))
        elif kind in (b"done", b"refused"):
            answer = self._answers.get(_number(number))
            if answer is not None and not answer.done():
                refused = detail.decode("utf-8", "replace") if kind == b"refused" else None
                answer.set_result((refused, passed))
                return
        for descriptor in passed:  # No caller waits for them.
            os.close(descriptor)

    async def _listen(self, bubblewrap: asyncio.subprocess.Process) -> None:
        """Keep bubblewrap's last output, until its end."""
        assert bubblewrap.stderr is not None
        while chunk := await bubblewrap.stderr.read(4096):
            self._words = (self._words + chunk)[-_LAST_WORDS_BYTES:]
        await bubblewrap.wait()
        last_output = explained(self._words.decode("utf-8", "replace").strip())
        self._over(f"The workspace's sandbox ended{': ' + last_output if last_output else ''}.")

    def _over(self, problem: str) -> None:
        """Fail all waiting callers: the sandbox has ended."""
        if self.problem is not None:
            return
        self.problem = problem
        if not self._up.done():
            self._up.set_exception(EnvironmentFault(f"A workspace could not be made. {problem}"))
            self._up.exception()  # There may be no waiting caller.
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(OSError(problem))
        for process in self._processes.values():
            if not process.ended.done():
                process.ended.set_result(-9)
        self._processes.clear()


def _packet(fields: Sequence[str | int]) -> bytes:
    """Return the fields of a packet, separated by zero bytes. Raises `OSError` if one contains any, or all are too long."""
    words = [str(field).encode() for field in fields]
    if any(b"\0" in word for word in words):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    packet = b"\0".join(words)
    if len(packet) > _PACKET_BYTES // 2:
        raise OSError("what is to be executed is too long")
    return packet


def _number(field: bytes) -> int:
    try:
        return int(field)
    except ValueError:
        return -1
