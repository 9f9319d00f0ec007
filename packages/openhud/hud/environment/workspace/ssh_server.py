"""The SSH server of a workspace: shell, commands and files, authenticated by the run's key.

It runs outside the sandbox and holds the keys; all commands and files are inside. A client may expose a port of its own side
on the sandbox's loopback (`exposed_port`); no other forwarding of ports, agents, X11 or sockets.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import asyncssh

from hud.environment.workspace.exposed_port import ExposedPort
from hud.environment.workspace.network.policy import LOOPBACK
from hud.environment.workspace.sandbox.pipes import Ingoing, Outgoing
from hud.environment.workspace.sandbox.sandbox import Process, Sandbox
from hud.environment.workspace.sandbox.scripts import script

LOGIN_SECONDS = 30
MOST_EXPOSED = 8
"""Most ports that a connection may expose."""
LONGEST_SIDE = 65_535
"""Maximum rows or columns of a terminal; clients' requests have 32 bits."""
_NOT_STARTED = 126
_ACCEPTED_VARIABLES = ("TERM", "LANG", "LC_ALL", "COLUMNS", "LINES")
_TARGET_FIRST = ("OpenSSH", "paramiko")
"""Clients that send the two paths of a new symlink in reverse order of the standard."""


@dataclass(frozen=True)
class Keys:
    """The keys of a run: generated for it, never stored."""

    host: asyncssh.SSHKey
    client: asyncssh.SSHKey

    @classmethod
    def generate(cls) -> Keys:
        return cls(
            asyncssh.generate_private_key("ssh-ed25519"),
            asyncssh.generate_private_key("ssh-ed25519"),
        )

    @property
    def host_public(self) -> str:
        """Host key in `known_hosts` format."""
        return str(self.host.export_public_key().decode().strip())

    @property
    def client_private(self) -> str:
        """Client key in key-file format."""
        return str(self.client.export_private_key().decode())


class WorkspaceServer:
    """Server of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.keys = Keys.generate()
        self.refusal: str | None = None
        """Reason why no process can be started; None while it is possible."""
        self.grading = False
        """True after the agent's end: connections and new processes are refused."""
        self.alone = asyncio.Lock()
        """Lock of the environment's exclusive commands: agents' new processes wait for it."""
        self.port = 0
        self.was_used = False
        """True after any process was started."""
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self._acceptor: asyncssh.SSHAcceptor | None = None

    async def start(self) -> None:
        """Listen on a local port."""
        self._acceptor = await asyncssh.listen(
            "127.0.0.1",
            0,
            config=[],
            server_factory=lambda: _Login(self),
            server_host_keys=[self.keys.host],
            authorized_client_keys=asyncssh.import_authorized_keys(
                self.keys.client.export_public_key().decode()
            ),
            password_auth=False,
            kbdint_auth=False,
            host_based_auth=False,
            gss_host=None,
            agent_forwarding=False,
            x11_forwarding=False,
            compression_algs=None,
            login_timeout=LOGIN_SECONDS,
            encoding=None,
            line_editor=False,
        )
        self.port = self._acceptor.get_port()

    def hang_up(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    def close(self) -> None:
        """Close all connections and stop listening."""
        if self._acceptor is not None:
            self._acceptor.close()
        self.hang_up()


class _Login(asyncssh.SSHServer):
    """A client's connection."""

    def __init__(self, server: WorkspaceServer) -> None:
        self._server = server
        self._connection: asyncssh.SSHServerConnection | None = None
        self._exposed = 0

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._server.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._server.connections.discard(self._connection)

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return False  # The authorized keys were checked before.

    def begin_auth(self, username: str) -> bool:
        return True

    async def server_requested(
        self, listen_host: str, listen_port: int
    ) -> asyncssh.SSHListener | bool:
        """Listen on the sandbox's loopback for the client; `listen_port` 0: any free port."""
        assert self._connection is not None
        if self._server.grading or self._exposed >= MOST_EXPOSED:
            return False
        self._exposed += 1
        listener = await self._server.sandbox.listen(LOOPBACK, listen_port)
        return await ExposedPort.open(self._connection, listen_host, listener)

    def session_requested(self) -> _Session | bool:
        assert self._connection is not None
        if self._server.grading:
            return False
        version = str(self._connection.get_extra_info("client_version", ""))
        return _Session(self._server, target_first=any(name in version for name in _TARGET_FIRST))


class _Session(asyncssh.SSHServerSession[bytes]):
    """A shell, command or file session: a process inside, with its input and output."""

    def __init__(self, server: WorkspaceServer, *, target_first: bool) -> None:
        self._server = server
        self._target_first = target_first
        self._argv: list[str] = []
        self._terminal: tuple[int, int] | None = None
        self._master = -1
        self._process: Process | None = None
        self._outputs: list[Outgoing] = []
        self._input: Ingoing | None = None
        self._early: list[bytes | None] = []
        """Input received before the process's start; None marks the end."""
        self._task: asyncio.Task[None] | None = None
        self._lost = False

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        columns, rows = (min(side, LONGEST_SIDE) for side in term_size[:2])
        self._terminal = (rows or 24, columns or 80)
        return True

    def shell_requested(self) -> bool:
        self._argv = [self._server.sandbox.plan.shell, "-l"]
        return True

    def exec_requested(self, command: str) -> bool:
        self._argv = [self._server.sandbox.plan.shell, "-c", command]
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        if subsystem == "sftp":
            self._terminal = None
            self._argv = self._server.sandbox.plan.program(
                script("sftp", *(["link-last"] if self._target_first else []))
            )
        return bool(self._argv)

    def session_started(self) -> None:
        self._server.was_used = True
        self._task = asyncio.ensure_future(self._live())

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        if self._input is None:
            self._early.append(data)
        else:
            self._input.put(data)

    def eof_received(self) -> bool:
        if self._input is None:
            self._early.append(None)
        elif self._terminal is None:
            self._input.finish()
        return True  # Its response may still be pending.

    def signal_received(self, signal: str) -> None:
        number = getattr(signals, f"SIG{signal}", None)
        if self._process is not None and number is not None:
            self._process.signal(number)

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self._terminal is None:
            return
        self._terminal = (min(height, LONGEST_SIDE), min(width, LONGEST_SIDE))
        if self._master != -1:
            size = struct.pack("HHHH", *self._terminal, 0, 0)
            with suppress(OSError):  # The process has ended.
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def pause_writing(self) -> None:
        for output in self._outputs:
            output.pause()

    def resume_writing(self) -> None:
        for output in self._outputs:
            output.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._process is not None:
            self._process.signal(signals.SIGKILL)
        if self._task is not None:
            self._task.cancel()

    async def _live(self) -> None:
        """Start the process, forward its output, and send its exit status."""
        self._channel.pause_reading()  # The start may be delayed; its input is buffered meanwhile.
        try:
            try:
                async with self._server.alone:
                    self._process = await self._start()
            except (OSError, ValueError, TypeError) as error:
                reason = getattr(error, "strerror", None) or error
                self._channel.write_stderr(f"The workspace refuses: {reason}\n".encode())
                self._channel.exit(_NOT_STARTED)
                return
            status = await self._process.wait()
            for output in self._outputs:
                await output.drained()
            if status < 0:
                self._channel.exit_with_signal(signals.Signals(-status).name.removeprefix("SIG"))
            else:
                self._channel.exit(status)
        finally:
            if self._lost and self._process is not None:
                self._process.signal(signals.SIGKILL)
            for output in self._outputs:
                output.close()
            if self._input is not None:
                self._input.close()
            self._master = -1

    async def _start(self) -> Process:
        if self._server.refusal is not None:
            raise OSError(self._server.refusal)
        if self._server.grading:
            raise OSError("the answer is being graded")
        sandbox, channel = self._server.sandbox, self._channel
        wanted = channel.get_environment()
        environment = {name: wanted[name] for name in _ACCEPTED_VARIABLES if name in wanted}
        if self._terminal is not None:
            environment["TERM"] = channel.get_terminal_type() or "xterm"
            process, self._master = await sandbox.spawn_on_terminal(
                self._argv, self._terminal, environment=environment
            )
            writing = os.dup(self._master)
            await self._read(self._master)
        else:
            process, writing = await self._start_on_pipes(environment)
        self._input = await Ingoing.write(writing, channel.pause_reading, channel.resume_reading)
        early, self._early = self._early, []
        for data in early:
            if data is None:
                self.eof_received()
            else:
                self._input.put(data)
        channel.resume_reading()
        return process

    async def _start_on_pipes(self, environment: dict[str, str]) -> tuple[Process, int]:
        theirs, writing = os.pipe()
        reading, out = os.pipe()
        reading_errors, err = os.pipe()
        try:
            process = await self._server.sandbox.spawn(
                self._argv, (theirs, out, err), environment=environment
            )
        except BaseException:
            for descriptor in (writing, reading, reading_errors):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (theirs, out, err):
                os.close(descriptor)
        await self._read(reading)
        await self._read(reading_errors, asyncssh.EXTENDED_DATA_STDERR)
        return process, writing

    async def _read(self, descriptor: int, kind: asyncssh.DataType = None) -> None:
        def take(data: bytes) -> None:
            with suppress(OSError):  # The client disconnected.
                self._channel.write(data, kind)

        self._outputs.append(await Outgoing.read(descriptor, take))


signals = signal
"""`signal`: the parameter's name in the base class."""
