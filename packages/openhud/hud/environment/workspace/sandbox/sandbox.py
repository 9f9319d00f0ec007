"""`Sandbox`: a workspace's processes and files, controlled from outside.

It exchanges packets with the supervisor inside; independent of SSH and runs. Its processes end with it, and it ends with
this process, also after a crash; its files are in memory only.
"""

from __future__ import annotations

import array
import asyncio
import errno
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

from hud.environment.workspace.sandbox.bubblewrap import Plan
from hud.environment.workspace.sandbox.lacking import explained
from hud.environment.workspace.sandbox.launch import BubblewrapLaunch
from hud.environment.workspace.sandbox.mounts import HOME, SEARCH_PATH, USER
from hud.errors import EnvironmentFault

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
    """A sandbox, to be started once with `start`, and closed with `close`, also after a failed start."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = asyncio.get_running_loop()
        self.folder = -1
        """A descriptor of the workspace's folder. Its files are the agent's: follow no links."""
        self.problem: str | None = None
        """Reason of the sandbox's end; None while it runs."""
        self.launch = (plan.image and plan.image.launch(plan)) or BubblewrapLaunch(plan)
        self._control: socket.socket | None = None
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[tuple[str | None, list[int]]]] = {}
        """Responses awaited: the reason of a refusal, and descriptors."""
        self._processes: dict[int, Process] = {}
        self._up: asyncio.Future[None] = self.loop.create_future()
        self._words = b""
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it; raises `EnvironmentFault` with the reason of a failure."""
        try:
            async with asyncio.timeout(self.launch.seconds):
                self._control = control = await self.launch.start()
                control.setblocking(False)
                assert self.launch.process is not None
                self._listening = asyncio.ensure_future(self._listen(self.launch.process))
                self.loop.add_reader(control, self._hear, control)
                await self._up
        except TimeoutError:
            raise EnvironmentFault(
                f"A workspace's sandbox was not up within {self.launch.seconds:g} s."
            ) from None

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

    async def kill_all(self) -> None:
        """Kill all its processes; its files stay."""
        if self.problem is None:
            await self._ask("kill_all")

    def tell(self, *fields: str | int, descriptors: Sequence[int] = ()) -> None:
        """Send a packet without waiting for a response; raises `OSError` for fields that no packet can hold."""
        rights = array.array("i", descriptors)
        attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        packet = _packet(fields)
        if self._control is not None:
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
        if self._control is not None:
            self.loop.remove_reader(self._control)
            self._control.close()
            self._control = None
        await self.launch.end()
        if self._listening is not None:
            self._listening.cancel()
        if self.folder != -1:
            os.close(self.folder)
            self.folder = -1

    async def _spawn(
        self,
        argv: Sequence[str],
        descriptors: Sequence[int],
        size: tuple[int, int] | None,
        environment: dict[str, str] | None,
        group_ends: bool = False,
    ) -> tuple[Process, list[int]]:
        user = self.launch.user
        if user is not None:
            for descriptor in descriptors:
                if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                    os.fchown(descriptor, user, user)  # For /dev/stdout.
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

    def _hear(self, control: socket.socket) -> None:
        """Process received packets."""
        while True:
            try:
                packet, attached, _, _ = control.recvmsg(_PACKET_BYTES, socket.CMSG_SPACE(4))
            except (BlockingIOError, ConnectionError):
                return
            if not packet:
                self.loop.remove_reader(control)
                # The process that started it exits, too, and may print the reason.
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

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Keep the last output of the process that started the sandbox, until its end."""
        assert process.stderr is not None
        while chunk := await process.stderr.read(4096):
            self._words = (self._words + chunk)[-_LAST_WORDS_BYTES:]
        await process.wait()
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
