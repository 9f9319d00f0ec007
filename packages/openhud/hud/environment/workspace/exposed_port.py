"""A port of a workspace that leads to its SSH client: remote forwarding, `ssh -R`.

The listener is on the sandbox's own loopback. The client decides where its connections go; the server connects nowhere.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import asyncssh

_PIECE_BYTES = 1 << 16
MOST_CONNECTIONS = 128
"""Most open connections of a port; further ones are refused."""


class ExposedPort(asyncssh.SSHListener):
    """Listener of a sandbox whose connections are forwarded to an SSH client."""

    def __init__(
        self, connection: asyncssh.SSHServerConnection, host: str, listener: socket.socket
    ) -> None:
        super().__init__()
        self._connection, self._host = connection, host
        self._port: int = listener.getsockname()[1]
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @classmethod
    async def open(
        cls, connection: asyncssh.SSHServerConnection, host: str, listener: socket.socket
    ) -> ExposedPort:
        """Accept connections on `listener`; `host` is the address that the client asked for."""
        port = cls(connection, host, listener)
        port._server = await asyncio.start_server(port._accept, sock=listener)
        return port

    def get_port(self) -> int:
        return self._port

    def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # Only `close` cancels it, and Python 3.11 reports a cancelled task of a server as a failure.
            with suppress(OSError, asyncssh.Error, asyncio.CancelledError):
                await self._forward(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await self._connection.open_connection(self._host, self._port, encoding=None)
        try:
            await asyncio.gather(_carry(reader, ours), _carry(theirs, writer))
        finally:
            ours.channel.abort()


async def _carry(
    reader: asyncio.StreamReader | asyncssh.SSHReader[bytes],
    writer: asyncio.StreamWriter | asyncssh.SSHWriter[bytes],
) -> None:
    """Copy bytes until the reader's end, and forward the end."""
    while data := await reader.read(_PIECE_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
