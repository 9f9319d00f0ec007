"""Server process of a platform: one application on one socket."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from hud.errors import StoreError, UsageError
from hud.processes.listening import listen as bound_socket
from hud_platform.access.teams import Teams
from hud_platform.application import create_app
from hud_platform.parts import Parts
from hud_platform.process.background import Background
from hud_platform.process.config import PlatformConfig
from hud_platform.process.http_connections import Bounds, allowed_connections, settings_of
from hud_platform.process.server_log import shorten_server_log

GRACE_SECONDS = 30
THREAD_SECONDS = 10.0
"""Time that threads have to end after the last response, before the process exits."""


@dataclass(frozen=True)
class Address:
    """Listening address of a server."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """URL for clients; a server on all interfaces uses this machine's host name."""
        host = {"0.0.0.0": "localhost", "::": "localhost"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables for clients of this server, without the key."""
        return {
            "HUD_API_URL": self.url,
            "HUD_GATEWAY_URL": self.url,
            "HUD_RL_URL": self.url,
            "HUD_RUNTIME_URL": self.url,
            "HUD_TELEMETRY_URL": f"{self.url}/v3/api",
            "HUD_WEB_URL": self.url,
        }


def serve(
    config: PlatformConfig, host: str, port: int, announce: Callable[[Address, str | None], None]
) -> None:
    """Serve until SIGINT or SIGTERM; a second signal exits immediately.
    `announce` is called when the server is up, with the address and, for a store without keys, the first key.
    Raises `UsageError` for an unavailable address, and for a store that cannot be opened or written.
    """
    listening = listen(host, port)
    bound = Address(host, listening.getsockname()[1])
    try:
        app = create_app(replace(config, url=bound.url))
        parts: Parts = app.state.parts
        parts.store.blobs.check()
    except StoreError as error:
        raise UsageError(str(error)) from error
    key = first_key(parts) if config.keys else None
    settings = server_settings(app, config, GRACE_SECONDS)
    run(_Server(settings, parts.background, lambda: announce(bound, key)), listening)


def server_settings(app: ASGIApp, config: PlatformConfig, grace_seconds: int) -> uvicorn.Config:
    """Return uvicorn's configuration for an application; a shutdown waits `grace_seconds` for open requests."""
    shorten_server_log()
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=grace_seconds,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        ws_max_size=64 << 20,
        **settings_of(Bounds(connections=allowed_connections(config.connections))),
    )


def run(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve on a socket until SIGINT or SIGTERM."""
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listening]))
        # Python joins threads without a time-out, and none interrupts native code, such as that of a tokenizer.
        patience = threading.Timer(THREAD_SECONDS, os._exit, (0,))
        patience.start()
    patience.cancel()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `UsageError` for an address that is in use or not of this machine."""
    listening = bound_socket(host, port, backlog=2048)
    # Inherited by connections. Without it, a response in two writes waits 40 ms for the acknowledgement of the first;
    # asyncio sets it only on sockets with an explicit protocol number.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def first_key(parts: Parts) -> str | None:
    """Create and return a first admin key if there is no key yet, else None."""
    if parts.keys.any():
        return None
    team = Teams(parts.store).default()
    return parts.keys.mint("first", team.id, scopes=("admin",))[1]


def freeze_memory() -> None:
    """Exclude objects that are loaded at startup from garbage collections, which block every request."""
    gc.collect()
    gc.freeze()


class AnnouncedServer(uvicorn.Server):
    """Server that calls `announce` when it is up, and exits with status 0 after a signal."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            await self.warm_up()
            freeze_memory()
            self._announce()

    async def warm_up(self) -> None:
        """Load modules and files for the first requests."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        # Uvicorn would raise the signal again; a requested stop is not a failure.
        self._captured_signals.clear()


class _Server(AnnouncedServer):
    """Server that ends background work first, which may send requests to it."""

    def __init__(
        self, config: uvicorn.Config, background: Background, announce: Callable[[], None]
    ) -> None:
        super().__init__(config, announce)
        self._background = background
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining is not None:
            # Child processes end with this one, and the store survives a crash of any process.
            os._exit(128 + sig)
        self._draining = asyncio.ensure_future(self._drain(sig, frame))

    async def _drain(self, sig: int, frame: FrameType | None) -> None:
        await self._background.drain()
        super().handle_exit(sig, frame)
