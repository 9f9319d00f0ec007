"""The control channel's server: one environment, any number of connections."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from asyncio import StreamReader, StreamWriter
from typing import Any

from hud.environment.channel.framing import MAX_FRAME_BYTES, watch
from hud.environment.channel.server.announcements import Offers
from hud.environment.channel.server.control_connection import ControlConnection
from hud.environment.channel.server.sessions import PARKED_SECONDS, Sessions
from hud.environment.environment import Environment
from hud.processes.listening import listen


class ControlServer:
    """Server of one environment for any number of connections."""

    def __init__(
        self,
        environment: Environment,
        *,
        max_frame: int = MAX_FRAME_BYTES,
        parked_seconds: float = PARKED_SECONDS,
        one_run: bool = False,
    ) -> None:
        """`one_run`: this process serves its first session alone, so that all processes below it are that run's."""
        self.environment = environment
        self.sessions = Sessions(environment, parked_seconds=parked_seconds, one_run=one_run)
        self.offers = Offers(self.sessions)
        self.max_frame = max_frame
        self._connected: set[asyncio.Task[Any]] = set()

    async def serve(self, listening: socket.socket) -> None:
        """Serve on a socket until cancelled or SIGTERM. Prints `HUD_SERVE_PORT=<port>` first."""
        loop = asyncio.get_running_loop()
        terminated: asyncio.Future[None] = loop.create_future()
        server = await asyncio.start_server(self.connected, sock=listening, limit=self.max_frame)
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            # Signal handlers are possible in the main thread only.
            loop.add_signal_handler(signal.SIGTERM, terminated.cancel)
        print(f"HUD_SERVE_PORT={listening.getsockname()[1]}", flush=True)
        try:
            await asyncio.wait({terminated})
        finally:
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                loop.remove_signal_handler(signal.SIGTERM)
            server.close()
            for task in self._connected:
                task.cancel()
            if self._connected:
                await asyncio.wait(list(self._connected))
            await self.close()

    async def close(self) -> None:
        await self.offers.tools.close()
        await self.sessions.close()

    async def connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection until it ends; its task, if any, is parked."""
        watch(writer)
        current = asyncio.current_task()
        assert current is not None
        self._connected.add(current)
        connection = ControlConnection(self.offers, reader, writer, max_frame=self.max_frame)
        try:
            await connection.serve()
        except (ConnectionError, asyncio.CancelledError):
            pass  # The peer disconnected, or the server is closing.
        finally:
            try:
                await connection.end()
            finally:
                self._connected.discard(current)
                writer.close()


async def bind(environment: Environment, host: str = "127.0.0.1", port: int = 0) -> asyncio.Server:
    """Listen for an environment's clients in this process, and return the listener; `serve` also closes all sessions."""
    server = ControlServer(environment)
    return await asyncio.start_server(server.connected, host, port, limit=server.max_frame)


async def serve(environment: Environment, *, host: str = "127.0.0.1", port: int = 8765) -> None:
    """Serve an environment over TCP until cancelled (port 0: any free). Raises `UsageError` if the port cannot be bound."""
    await ControlServer(environment).serve(listen(host, port))
