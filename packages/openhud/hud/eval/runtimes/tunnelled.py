"""`HUDRuntime`: the environment on the platform, the agent in this process, connected by a tunnel."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from hud import settings
from hud.environment.channel import RemoteConnection
from hud.environment.channel.client.remote_connection import Loss
from hud.errors import HudError, InfrastructureFault, UsageError
from hud.eval.runtimes.rollout_runtime import RolloutRuntime

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.exceptions import ConnectionClosed

    from hud.environment import Task

READY_SECONDS = 300.0
HALF_CLOSED = b""
"""Message of a tunnel: end of this side's data."""
HALF_CLOSED_SECONDS = 30.0
NORMAL = 1000
FAILED = 1011
"""Code with which the platform closes a tunnel to an environment that does not listen."""
LOST_PAUSE_SECONDS, LOST_SECONDS = 0.1, 5.0
"""Time for a further tunnel to show whether a lost environment still listens, in seconds."""
_CHUNK = 1 << 18


class HUDRuntime(RolloutRuntime):
    """Runtime with a separate environment for each rollout, on the platform at `runtime_url` (default: `HUD_RUNTIME_URL`)."""

    def __init__(self, *, runtime_url: str | None = None, run_timeout: float | None = None) -> None:
        self.runtime_url = runtime_url
        self.run_timeout = run_timeout

    @asynccontextmanager
    async def __call__(self, task: Task) -> AsyncIterator[RemoteConnection]:
        """Start the task's environment there, and connect to it."""
        now = settings.load()
        url = self.runtime_url or now.runtime_url
        if url is None:
            raise UsageError(
                "HUDRuntime needs a platform: set HUD_API_URL (or HUD_RUNTIME_URL), or run the environment here "
                "with LocalRuntime or ForkRuntime."
            )
        from hud.client import Client  # Imports an HTTP client, for this runtime only.

        client = Client(api_url=url, api_key=now.api_key, home=now.home)
        started = await client.post("/runtime/sessions", {"environment": task.env})
        session = started["id"]
        try:
            tunnels = _Tunnels(url, now.api_key, session)
            async with _listening(tunnels) as port:
                connection = await _dial(port, tunnels)
                connection.address = f"hud:{session}"
                connection.why_lost = lambda: _why_lost(port, tunnels)
                try:
                    yield connection
                finally:
                    await connection.close()
        finally:
            with contextlib.suppress(HudError):
                await client.delete(f"/runtime/sessions/{session}")


class _Tunnels:
    """Server that opens a tunnel for each local connection."""

    def __init__(self, url: str, key: str | None, session: str) -> None:
        self.place = f"{url.replace('http', 'ws', 1).rstrip('/')}/runtime/tunnels/{session}"
        self.headers = {"authorization": f"Bearer {key}"} if key else {}
        self.refused: str | None = None
        """The platform's reason for closing the last tunnel."""
        self.codes: list[int] = []
        """Codes with which the platform has closed tunnels, in order; without those of a normal end."""
        self.broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Future: set when the environment has failed to start."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay a connection's bytes, until either side ends it."""
        try:
            from websockets.asyncio.client import connect
            from websockets.exceptions import ConnectionClosed, WebSocketException
        except ImportError:
            raise UsageError(
                "HUDRuntime needs websockets: pip install 'openhud[platform]'"
            ) from None
        try:
            async with connect(
                self.place, additional_headers=self.headers, max_size=None, compression=None
            ) as tunnel:
                there = asyncio.create_task(_send(reader, tunnel))
                back = asyncio.create_task(_receive(tunnel, writer))
                await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
                if not back.done():
                    # This side has ended; the other may still send.
                    await tunnel.send(HALF_CLOSED)
                    await asyncio.wait({back}, timeout=HALF_CLOSED_SECONDS)
                there.cancel()
                back.cancel()
                for outcome in await asyncio.gather(there, back, return_exceptions=True):
                    if isinstance(outcome, ConnectionClosed):
                        self._closed(outcome)
        except (OSError, WebSocketException) as error:
            self.refused = str(error)
        finally:
            writer.close()

    def _closed(self, how: ConnectionClosed) -> None:
        close_frame = how.rcvd
        if close_frame is None or close_frame.code == NORMAL:
            return
        self.codes.append(close_frame.code)
        self.refused = close_frame.reason or str(close_frame.code)
        if not self.broken.done():
            self.broken.set_result(self.refused)


async def _dial(port: int, tunnels: _Tunnels) -> RemoteConnection:
    """Connect, as soon as the environment is up; raises `InfrastructureFault` if it fails to start."""
    dialling = asyncio.create_task(
        RemoteConnection.dial("127.0.0.1", port, ready_timeout=READY_SECONDS)
    )
    try:
        first: set[asyncio.Future[Any]] = {dialling, tunnels.broken}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not dialling.done():
            raise InfrastructureFault(
                f"The platform could not bring the environment up: {tunnels.broken.result()}"
            )
        return dialling.result()
    finally:
        dialling.cancel()


async def _why_lost(port: int, tunnels: _Tunnels) -> Loss:
    """Return how the environment was lost: one that a further tunnel does not reach has ended, any other is out of reach."""
    before = len(tunnels.codes)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(LOST_SECONDS):
            # Repeated: a process that is ending may still take a connection. One that goes on says nothing of itself.
            while FAILED not in tunnels.codes[before:]:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    await reader.read(1)
                finally:
                    writer.close()
                await asyncio.sleep(LOST_PAUSE_SECONDS)
    if FAILED in tunnels.codes[before:]:
        return Loss("its process on the platform has ended", alone=True)
    return Loss("the connection was closed")


@asynccontextmanager
async def _listening(tunnels: _Tunnels) -> AsyncIterator[int]:
    """A local port whose connections are tunnelled."""
    server = await asyncio.start_server(tunnels.serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    except InfrastructureFault as error:
        if tunnels.refused is not None:
            raise InfrastructureFault(f"{error} The platform said: {tunnels.refused}") from error
        raise
    finally:
        server.close()


async def _send(reader: asyncio.StreamReader, tunnel: ClientConnection) -> None:
    while chunk := await reader.read(_CHUNK):
        await tunnel.send(chunk)


async def _receive(tunnel: ClientConnection, writer: asyncio.StreamWriter) -> None:
    message: Any
    async for message in tunnel:
        writer.write(message if isinstance(message, bytes) else message.encode())
        await writer.drain()
