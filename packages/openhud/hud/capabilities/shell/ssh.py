"""`SSHClient`: a shell and files, over SSH and SFTP.

It reconnects after a lost connection, but never repeats a command that may have been executed.
"""

from __future__ import annotations

import asyncio
import posixpath
import shlex
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import asyncssh

from hud.capabilities.capability import SSH, Capability, CapabilityClient
from hud.capabilities.shell.bash import Shell
from hud.errors import EnvironmentFault, InfrastructureFault
from hud.processes.backoff import Backoff

CONNECT_SECONDS = 30.0
_ATTEMPTS = 3
_PAUSES = Backoff(0.25)
_KEPT_BYTES = 1 << 20
_FIRST_BYTES = 1 << 16
_LOST = (asyncssh.ConnectionLost, asyncssh.ChannelOpenError, ConnectionError)

T = TypeVar("T")


@dataclass(frozen=True)
class Finished:
    """Result of a command."""

    exit_status: int | None
    """Exit status; None after a time-out; negative: the signal that killed it."""
    stdout: str
    stderr: str


@dataclass(frozen=True)
class FileEntry:
    """An entry of a folder."""

    name: str
    is_folder: bool


class SSHClient(CapabilityClient):
    """A connection to a machine, or to a run's workspace."""

    protocol: ClassVar[str] = SSH

    def __init__(self, capability: Capability) -> None:
        self._capability = capability
        self._connection: asyncssh.SSHClientConnection | None = None
        self._files: asyncssh.SFTPClient | None = None
        self._connecting = asyncio.Lock()
        self.cwd: str | None = capability.params.get("cwd")
        """Working directory of commands; None: the server's default."""

    @classmethod
    async def connect(cls, capability: Capability) -> Self:
        """Connect with `params`: `user`, `client_key` or `client_key_path`, `host_pubkey`, `cwd`.

        The server's key is checked if `host_pubkey` is set.
        """
        client = cls(capability)
        await client._connected()
        return client

    async def close(self) -> None:
        connection, self._connection, self._files = self._connection, None, None
        if connection is not None:
            connection.abort()
            with suppress(Exception):
                await connection.wait_closed()

    async def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        input: str | bytes | None = None,
        cwd: str | None = None,
    ) -> Finished:
        """Run one command in its own process, for at most `timeout` seconds; stdout and stderr are each cut at 1 MB."""
        folder = cwd or self.cwd
        if folder is not None:
            command = f"cd -- {shlex.quote(folder)} && {{ {command}\n}}"
        process = await self._repeated(
            lambda connection: connection.create_process(command, encoding=None)
        )
        stdin = input.encode() if isinstance(input, str) else input
        out, err = bytearray(), bytearray()
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(
                    _give(process, stdin), _take(process.stdout, out), _take(process.stderr, err)
                )
                await process.wait_closed()
        except TimeoutError:
            return Finished(None, _text(out), _text(err))
        except _LOST as error:
            raise self._lost(error) from error
        finally:
            if process.exit_status is None:
                with suppress(OSError, asyncssh.Error):
                    process.kill()
            process.close()
        if process.exit_signal is not None:
            return Finished(-1, _text(out), _text(err) + f"ended by SIG{process.exit_signal[0]}")
        return Finished(process.exit_status, _text(out), _text(err))

    async def expose(self, host: str, port: int) -> int:
        """Return a port of the machine's loopback that leads to `host:port` of this side, while the connection lasts.

        Raises `EnvironmentFault` if the server forwards no ports.
        """
        try:
            listener = await self._repeated(
                lambda connection: connection.forward_remote_port("127.0.0.1", 0, host, port)
            )
        except asyncssh.ChannelListenError as error:
            raise EnvironmentFault(
                f"{self._capability.name!r} forwards no ports to its SSH client (`ssh -R`): {error}."
            ) from error
        return listener.get_port()

    async def shell(self) -> Shell:
        """Start a shell that keeps its working directory and variables between commands."""
        process = await self._repeated(
            lambda connection: connection.create_process(
                "bash --noprofile --norc", encoding=None, stderr=asyncssh.STDOUT
            )
        )
        return Shell(process, self.cwd)

    async def read(self, path: str, most_bytes: int = _KEPT_BYTES) -> bytes:
        """Return the first `most_bytes` of a file; raises `OSError` if it cannot be read."""

        async def reading(files: asyncssh.SFTPClient) -> bytes:
            async with files.open(self._path(path), "rb") as file:
                content = await file.read(most_bytes)
            return content.encode() if isinstance(content, str) else content

        return await self._with_files(path, reading)

    async def write(self, path: str, data: str | bytes) -> None:
        """Write a file and create its folders; raises `OSError` if it cannot be written."""
        content = data.encode() if isinstance(data, str) else data

        async def writing(files: asyncssh.SFTPClient) -> None:
            folder = posixpath.dirname(self._path(path))
            if folder and not await files.isdir(folder):
                await files.makedirs(folder, exist_ok=True)
            async with files.open(self._path(path), "wb") as file:
                await file.write(content)

        await self._with_files(path, writing)

    async def is_folder(self, path: str) -> bool:
        """Return True for a folder; raises `FileNotFoundError` if the path does not exist."""
        attributes = await self._with_files(path, lambda files: files.stat(self._path(path)))
        return stat.S_ISDIR(attributes.permissions or 0)

    async def exists(self, path: str) -> bool:
        try:
            await self.is_folder(path)
        except FileNotFoundError:
            return False
        return True

    async def entries(self, path: str) -> list[FileEntry]:
        """Return the entries of a folder, by name; a link to a folder does not count as a folder."""
        listing = await self._with_files(path, lambda files: files.readdir(self._path(path)))
        listed = [
            FileEntry(_name(entry.filename), stat.S_ISDIR(entry.attrs.permissions or 0))
            for entry in listing
        ]
        return sorted(
            (entry for entry in listed if entry.name not in (".", "..")),
            key=lambda entry: entry.name,
        )

    def _path(self, path: str) -> str:
        return posixpath.join(self.cwd or "", path)

    async def _with_files(
        self, path: str, work: Callable[[asyncssh.SFTPClient], Awaitable[T]]
    ) -> T:
        async def working(connection: asyncssh.SSHClientConnection) -> T:
            try:
                if self._files is None:
                    self._files = await self._file_session(connection)
                return await work(self._files)
            except asyncssh.SFTPNoSuchFile as error:
                raise FileNotFoundError(
                    f"{path}: {error.reason or 'there is no such file'}"
                ) from error
            except (asyncssh.SFTPNoConnection, asyncssh.SFTPConnectionLost) as error:
                self._files = None
                raise ConnectionError(str(error)) from error
            except asyncssh.SFTPError as error:
                raise OSError(f"{path}: {error.reason}") from error

        return await self._repeated(working)

    async def _file_session(self, connection: asyncssh.SSHClientConnection) -> asyncssh.SFTPClient:
        try:
            return await connection.start_sftp_client()
        except asyncssh.SFTPError as error:
            if connection.is_closed():
                raise
            raise OSError(
                f"{self._capability.name!r} gives no access to files: {error.reason}"
            ) from error

    async def _repeated(self, work: Callable[[asyncssh.SSHClientConnection], Awaitable[T]]) -> T:
        """Run an idempotent operation, on a new connection if the old one was lost."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await work(await self._connected())
            except _LOST as error:
                refused = isinstance(error, asyncssh.ChannelOpenError) and self._is_up()
                if not refused:
                    await self.close()
                if refused or attempt == _ATTEMPTS:
                    raise self._lost(error) from error
                await asyncio.sleep(_PAUSES.seconds(attempt))
        raise AssertionError("unreachable")

    async def _connected(self) -> asyncssh.SSHClientConnection:
        async with self._connecting:
            if not self._is_up():
                self._files = None
                self._connection = await _connection(self._capability)
            assert self._connection is not None
            return self._connection

    def _is_up(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    def _lost(self, error: Exception) -> InfrastructureFault:
        return InfrastructureFault(
            f"The connection to {self._capability.name!r} at {self._capability.url} was lost: {error}."
        )


async def _connection(capability: Capability) -> asyncssh.SSHClientConnection:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return await _dial(capability)
        except (OSError, asyncssh.ConnectionLost) as error:
            if attempt == _ATTEMPTS:
                raise InfrastructureFault(
                    f"{capability.name!r} at {capability.url} cannot be reached: {error}."
                ) from error
            await asyncio.sleep(_PAUSES.seconds(attempt))
        except asyncssh.Error as error:
            raise EnvironmentFault(
                f"{capability.name!r} at {capability.url} refuses the login: {error.reason}."
            ) from error
    raise AssertionError("unreachable")


async def _dial(capability: Capability) -> asyncssh.SSHClientConnection:
    params = capability.params
    host, port = capability.address
    return await asyncssh.connect(
        host,
        port,
        username=str(params.get("user") or "root"),
        client_keys=_client_keys(params),
        known_hosts=_known_hosts(params),
        password=params.get("password"),
        # No keys and settings of this machine's user.
        config=[],
        agent_path=None,
        x509_trusted_certs=None,
        x509_trusted_cert_paths=[],
        gss_host=None,
        preferred_auth="publickey,password",
        connect_timeout=CONNECT_SECONDS,
        login_timeout=CONNECT_SECONDS,
        keepalive_interval=30,
        compression_algs=None,
        # Half the time of the default cipher for each packet, in the processors' own instructions.
        encryption_algs="^aes128-gcm@openssh.com",
        # On this machine without the default's post-quantum key exchange, a sixth of the login's time.
        kex_algs="^curve25519-sha256" if host == "127.0.0.1" else (),
    )


def _client_keys(params: dict[str, Any]) -> list[asyncssh.SSHKey]:
    text, path = params.get("client_key"), params.get("client_key_path")
    try:
        if text is not None:
            return [asyncssh.import_private_key(text)]
        if path is not None:
            return [asyncssh.read_private_key(Path(path))]
    except (OSError, asyncssh.KeyImportError) as error:
        raise EnvironmentFault(f"An SSH capability's key cannot be read: {error}.") from error
    return []


def _known_hosts(params: dict[str, Any]) -> Any:
    """Return the server's key in `connect`'s format; None: it announced none."""
    line = params.get("host_pubkey")
    if not line:
        return None
    try:
        return [asyncssh.import_public_key(line)], [], []
    except asyncssh.KeyImportError as error:
        raise EnvironmentFault(f"An SSH capability's host key cannot be read: {error}.") from error


async def _give(process: asyncssh.SSHClientProcess[bytes], data: bytes | None) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        if data:
            process.stdin.write(data)
            await process.stdin.drain()
        process.stdin.write_eof()


async def _take(stream: asyncssh.SSHReader[bytes], output: bytearray) -> None:
    """Keep the beginning and the end of the output."""
    while data := await stream.read(_FIRST_BYTES):
        output += data
        if len(output) > _KEPT_BYTES:
            del output[_FIRST_BYTES : len(output) - _KEPT_BYTES + _FIRST_BYTES]


def _text(data: bytearray) -> str:
    return data.decode("utf-8", "replace")


def _name(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "replace")
