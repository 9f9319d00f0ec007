"""Connections out of and into a workspace, relayed by this process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from hud.environment.streams import Stream, relay
from hud.environment.workspace.network.policy import (
    IDLE_SECONDS,
    LOOPBACK,
    PROXY_PORT,
    Network,
)
from hud.environment.workspace.network.proxy import Proxy
from hud.errors import EnvironmentFault

MOST_CONNECTIONS = 128
_CONNECT_SECONDS = 30.0
_Handle = Callable[[Stream], Awaitable[None]]


class Listens(Protocol):
    """A sandbox with its own loopback."""

    async def listen(self, address: str, port: int) -> socket.socket:
        """Listen at an address of the sandbox's loopback, accepting in this process; raises `OSError`."""
        ...


class OpenNetwork:
    """Connections out of a sandbox and, if it can be dialled, into it."""

    def __init__(
        self, sandbox: Listens, dial: Callable[[int], Awaitable[socket.socket]] | None = None
    ) -> None:
        self._sandbox = sandbox
        self._dial = dial
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, network: Network) -> None:
        if network.web:
            await self.serve(LOOPBACK, PROXY_PORT, Proxy(network.allowed_hosts).serve)
        hosts = network.hosts()
        for peer in network.peers:
            await self.connect(peer.port, *peer.address, inside=hosts[peer.name])

    async def connect(self, port: int, host: str, target: int, inside: str = LOOPBACK) -> None:
        """Forward the sandbox's `port` to a service."""

        await self.serve(inside, port, _relays(lambda: asyncio.open_connection(host, target)))

    async def reach(self, port: int) -> int:
        """Return a local port that is forwarded to the sandbox's `port`."""
        dial = self._dial
        assert dial is not None

        async def connect() -> Stream:
            return await asyncio.open_connection(sock=await dial(port))

        server = await asyncio.start_server(self._accepts(_relays(connect)), LOOPBACK, 0)
        self._servers.append(server)
        local_port: int = server.sockets[0].getsockname()[1]
        return local_port

    async def close(self) -> None:
        """Close all connections and listeners."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def serve(self, address: str, port: int, handle: _Handle) -> None:
        """Handle connections to an address in the sandbox. Raises `EnvironmentFault` if it cannot listen."""
        try:
            listener = await self._sandbox.listen(address, port)
        except OSError as error:
            raise EnvironmentFault(
                f"A workspace cannot have a way out at {address}:{port}: {error.strerror or error}."
            ) from error
        self._servers.append(await asyncio.start_server(self._accepts(handle), sock=listener))

    def _accepts(
        self, handle: _Handle
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(self._tasks) >= MOST_CONNECTIONS:
                writer.transport.abort()
                return
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                # Only `close` cancels it, and Python 3.11 reports a cancelled task of a server as a failure.
                with suppress(OSError, asyncio.CancelledError):
                    await handle((reader, writer))
            finally:
                self._tasks.discard(task)
                writer.close()

        return accepted


def _relays(connect: Callable[[], Awaitable[Stream]]) -> _Handle:
    """Return a handler that relays a connection to one of `connect`; if that fails, the connection is closed."""

    async def pass_on(stream: Stream) -> None:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                other = await connect()
        except (OSError, TimeoutError):
            stream[1].transport.abort()
            return
        await relay(stream, other, idle_seconds=IDLE_SECONDS)

    return pass_on
