"""The warm server of a `ForkRuntime` and its children: the client side."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
from itertools import count
from typing import Any

from pydantic import TypeAdapter

from hud import exact_json
from hud.environment.channel import RemoteConnection
from hud.environment.channel.client.remote_connection import Loss
from hud.environment.channel.framing import PRIVATE_FRAME_BYTES
from hud.errors import AgentFault, EnvironmentFault, InfrastructureFault, UsageError
from hud.eval.runtimes.child import Limits
from hud.eval.runtimes.interpreter import Interpreter, told_exit
from hud.eval.runtimes.process_loss import MemoryShortage, loss_of, takes_most_memory
from hud.eval.runtimes.zygote import MESSAGE_BYTES
from hud.trace import ToolSpec

_SPECS = TypeAdapter(list[ToolSpec])
_EXIT_SECONDS = 0.5
"""Time to wait for the exit status of a server whose socket is closed, in seconds."""
_RESUME_SECONDS = 1.0
_END_SECONDS = 2.0
"""Time that a process has to exit, before it is killed, in seconds."""


class Child:
    """A rollout's process."""

    connection: RemoteConnection

    def __init__(self, server: WarmServer, number: int, limits: Limits) -> None:
        self.server = server
        self.number = number
        self.limits = limits
        self.pid: int | None = None
        self.ended: asyncio.Future[dict[str, Any]] = server.loop.create_future()
        self.task: str | None = None
        """Slug of its rollout's task, once that has begun."""

    async def connect(self, stream: socket.socket) -> None:
        """Connect to its environment over `stream`."""
        reader, writer = await asyncio.open_unix_connection(sock=stream, limit=PRIVATE_FRAME_BYTES)
        self.connection = connection = RemoteConnection(
            reader,
            writer,
            address=f"fork:{self.number}",
            why_lost=self.why_lost,
            max_frame=PRIVATE_FRAME_BYTES,
        )
        manifest = self.server.manifest
        connection.name, connection.version = manifest["name"], manifest["version"]
        low, high = manifest["reward_range"]
        connection.reward_range = (low, high)
        connection.tools = self.server.tools

    async def why_lost(self) -> Loss:
        await self._over()
        if not self.ended.done():
            return Loss("it closed its connection, but runs on", alone=True)
        end = self.ended.result()
        if "killed" in end:
            return Loss(end["killed"], AgentFault)
        if "machinery" in end:
            return Loss(end["machinery"], InfrastructureFault)
        if end["limit"] is not None:
            limit = vars(self.limits)[end["limit"]]
            return Loss(
                f"it passed its limit {end['limit']}={limit:g}", alone=True, passed_limit=True
            )
        lacked_memory = self.server.lacked_memory and not takes_most_memory(end["peak_bytes"])
        return loss_of(end["status"], end["said"], lacked_memory=lacked_memory)

    async def close(self) -> None:
        """Disconnect, and wait for the process's end: what it held open is free then. One that does not exit is killed."""
        try:
            await self.connection.close()
            if not self.connection.hung:
                await self._over()
        finally:
            if not self.ended.done():
                self.server.say({"kill": self.number})
                await self._over()
            self.server.children.pop(self.number, None)

    async def _over(self) -> None:
        self.server.resume()
        await asyncio.wait([self.ended], timeout=_END_SECONDS)


class WarmServer:
    """A process that has imported an environment and forks itself for each rollout."""

    def __init__(
        self,
        source: str,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        suspects: set[str],
    ) -> None:
        self.source = source
        self.suspects = suspects
        """Tasks whose runs were at work when a server of this runtime was killed."""
        self.process = process
        self.control = control
        self.loop = asyncio.get_running_loop()
        self.dead = False
        self.manifest: dict[str, Any] = {}
        self.tools: list[ToolSpec] | None = None
        """The tools, if they are equal in all runs."""
        self.offers = False
        """True if runs may have capabilities: each run is then queried for its own."""
        self._ready: asyncio.Future[None] = self.loop.create_future()
        self.children: dict[int, Child] = {}
        self._numbers = count(1)
        self._shortage = MemoryShortage()
        self._pid = os.getpid()
        self._resuming: asyncio.TimerHandle | None = None
        self.loop.add_reader(control, self._hear)
        atexit.register(self.stop)

    @classmethod
    async def start(
        cls,
        source: str,
        timeout: float,
        interpreter: Interpreter | None = None,
        suspects: set[str] | None = None,
    ) -> WarmServer:
        """Start an interpreter and load the environment; `suspects` are shared by the servers of a runtime. Raises `EnvironmentFault` after `timeout` seconds."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        # This process's `sys.path`: the environment can import the same modules.
        path = f"import sys; sys.path[:] = {sys.path!r}\n" if interpreter is None else ""
        code = f"{path}from hud.eval.runtimes import zygote\nzygote.main({source!r})"
        variables = os.environ if interpreter is None else interpreter.variables
        # Not asyncio's: the server outlives the event loop and its child watcher, and starting it blocks briefly.
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable if interpreter is None else str(interpreter.python), "-c", code],
            env=variables,
            # Not another descriptor: its number depends on what this process has open, and would tell an audit.
            stdin=theirs.fileno(),
            stdout=2,  # Output of the environment's import must not be printed here.
            start_new_session=True,
        )
        theirs.close()
        server = cls(source, process, ours, set() if suspects is None else suspects)
        try:
            async with asyncio.timeout(timeout):
                await server._ready
        except TimeoutError:
            server.kill()
            raise EnvironmentFault(f"{source} was not imported within {timeout:g} s.") from None
        except BaseException:
            server.kill()
            raise
        return server

    async def fork(self, limits: Limits) -> Child:
        """Return a connected child under `limits`. Raises `InfrastructureFault` if the warm server has exited."""
        ours, theirs = socket.socketpair()
        child = Child(self, next(self._numbers), limits)
        self.children[child.number] = child
        if self._resuming is None:
            self._keep_running()
        request = exact_json.dumps({"fork": child.number, "limits": vars(limits)})
        try:
            await self._send(request, [theirs.fileno()])
            await child.connect(ours)
        except BaseException as error:
            ours.close()
            self.say({"kill": child.number})
            self.children.pop(child.number, None)
            if not isinstance(error, OSError):
                raise
            raise InfrastructureFault(
                f"The warm server of {self.source} is gone: {error}."
            ) from error
        finally:
            theirs.close()
        return child

    @property
    def lacked_memory(self) -> bool:
        """True if the kernel has just killed a process of this machine for want of memory."""
        return self._shortage.is_recent

    def _keep_running(self) -> None:
        """Resume the server each second while it has runs: a run that is stopped as well would be held up, and its grade."""
        self._resuming = None
        if not self.dead and self.children:
            self.resume()
            self._shortage.observe()
            self._resuming = self.loop.call_later(_RESUME_SECONDS, self._keep_running)

    def resume(self) -> None:
        """Resume the server if a tool has stopped it (SIGSTOP): other runs would wait for it without end."""
        if not self.dead:
            self.process.send_signal(signal.SIGCONT)

    async def _send(self, request: bytes, descriptors: list[int]) -> None:
        self.resume()
        while True:
            try:
                socket.send_fds(self.control, [request], descriptors)
            except BlockingIOError:
                await asyncio.sleep(0.001)
            else:
                return

    def say(self, message: dict[str, Any]) -> None:
        """Send a message, ignoring an exited server, which has killed its children."""
        self.resume()
        with contextlib.suppress(OSError):
            self.control.send(exact_json.dumps(message))

    def stop(self) -> None:
        """Disconnect: the server kills its children and exits, or is killed."""
        if os.getpid() == self._pid:
            self.resume()
        self._detach()
        if os.getpid() != self._pid:
            return  # A forked child of this process, at its exit.
        try:
            self.process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._all_ended("the runtime was closed")

    def kill(self) -> None:
        """Kill the server and its children immediately."""
        self._detach()
        # Not those that have ended: their ids may be other processes' by now.
        running = [child.pid for child in self.children.values() if not child.ended.done()]
        for pid in (self.process.pid, *running):
            # A group id stays valid while any member runs; only then is it killed.
            if pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
        self.process.wait()

    def _detach(self) -> None:
        atexit.unregister(self.stop)
        self.dead = True
        if self._resuming is not None:
            self._resuming.cancel()
        if self.control.fileno() >= 0:
            with contextlib.suppress(RuntimeError, ValueError):
                self.loop.remove_reader(self.control)
            self.control.close()

    def _hear(self) -> None:
        files: list[int] = []
        try:
            if self._ready.done():
                data = self.control.recv(MESSAGE_BYTES)
            else:
                data, files, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._died()
            return
        message = exact_json.loads(data)
        if "ready" in message:
            self._greeted(*files)
        elif "failed" in message:
            self._settle(UsageError(message["failed"]))
        elif "machinery" in message:
            why = f"{self.source} was imported, but could not be served: {message['machinery']}."
            self._settle(InfrastructureFault(why))
        elif "forked" in message:
            if forked := self.children.get(message["forked"]):
                forked.pid = message["pid"]
        elif "refused" in message:
            why = f"it was not forked: {message['why']}"
            self._ended(message["refused"], {"machinery": why})
        else:
            self._ended(message["ended"], message)

    def _greeted(self, file: int) -> None:
        with open(file, "rb") as reader:
            reader.seek(0)
            self.manifest = exact_json.loads(reader.read())
        tools = self.manifest["tools"]
        self.tools = None if tools is None else _SPECS.validate_python(tools)
        self.offers = bool(self.manifest["offers"])
        self._settle(None)

    def _settle(self, error: Exception | None) -> None:
        if self._ready.done():
            return
        if error is None:
            self._ready.set_result(None)
        else:
            self._ready.set_exception(error)

    def _ended(self, number: int, end: dict[str, Any]) -> None:
        child = self.children.get(number)
        if child is not None and not child.ended.done():
            child.ended.set_result(end)

    def _died(self) -> None:
        """Handle an unexpected exit of the server."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_EXIT_SECONDS)
        self.kill()
        how = told_exit(self.process.returncode, "")
        # No import kills its process so: another program did, or the kernel for want of memory.
        killed = self.process.returncode == -signal.SIGKILL
        fault = InfrastructureFault if killed else EnvironmentFault
        self._settle(fault(f"{self.source} could not be imported: {how}."))
        if self.process.returncode < 0:
            self._blame(how)
        self._all_ended(f"the warm server died ({how})")

    def _blame(self, how: str) -> None:
        """End the runs that have killed the server as their agents' failure: a wrong answer would be repeated otherwise.

        Those are: the only run whose tool was at work, and of several those of tasks that were at work at an earlier kill, too.
        Where none was: the only run whose agent has called a tool. A kill for want of memory is no run's.
        """
        if self.lacked_memory:
            return
        begun = {
            number: (child.task, child.connection)
            for number, child in self.children.items()
            if child.task is not None
        }
        acted = {number: task for number, (task, run) in begun.items() if run.acted}
        at_work = {number: task for number, task in acted.items() if begun[number][1].at_work}
        candidates = at_work or acted
        repeated = {number for number, task in at_work.items() if task in self.suspects}
        for number in candidates if len(candidates) == 1 else repeated:
            why = f"the server of all runs died while this run was at work: {how}"
            self._ended(number, {"killed": why})
        self.suspects.update(at_work.values())

    def _all_ended(self, why: str) -> None:
        if not self.loop.is_closed():
            for number in list(self.children):
                self._ended(number, {"machinery": why})
