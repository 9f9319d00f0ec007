"""A platform as a service: one application behind one socket, until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from hud.errors import StoreError, UsageError
from hud.platform.access.teams import Teams
from hud.platform.application import Parts, PlatformConfig, create_app
from hud.platform.background import Background
from hud.platform.http_connections import Bounds, allowed_connections, settings_of

GRACE_SECONDS = 30


@dataclass(frozen=True)
class Address:
    """Address on which a server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """URL for clients; a server on every interface has this machine's name."""
        host = {"0.0.0.0": "localhost", "::": "localhost"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that point a client here; its key comes beside them."""
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
    """Serve until SIGINT or SIGTERM; a second one does not wait for anybody.

    `announce` is called once requests are answered, with the address and, on a store that had none, the first
    key. Raises `UsageError` for an address that cannot be had, and for a store that cannot be opened or written.
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
    """Return how an application is served; a shutdown waits `grace_seconds` for open requests."""
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


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises `UsageError` where the address is taken, or is none of ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UsageError(
            f"{host}:{port} cannot be listened on: {error.strerror}. Choose another --port, or 0 for any."
        ) from error
    # Connections inherit it. Without, an answer in two writes waits 40 ms for the client's acknowledgement of the first;
    # asyncio's own loop sets it only on sockets that name their protocol, which these do not.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def first_key(parts: Parts) -> str | None:
    """Return a first admin key, where there is no key yet."""
    if parts.keys.any():
        return None
    team = Teams(parts.store).default()
    return parts.keys.mint("first", team.id, scopes=("admin",))[1]


def freeze_memory() -> None:
    """Keep what a server has loaded when it is up out of garbage collections, each of which stops every request."""
    gc.collect()
    gc.freeze()


class AnnouncedServer(uvicorn.Server):
    """A server that calls `announce` when it is up, and whose stop by a signal is no failure."""

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
        """Load what the first requests need."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        # Uvicorn would raise the signal again, as if nothing had handled it; a stop that was asked for is no failure.
        self._captured_signals.clear()


class _Server(AnnouncedServer):
    """Ends background work before it stops: that may need it to answer."""

    def __init__(
        self, config: uvicorn.Config, background: Background, announce: Callable[[], None]
    ) -> None:
        super().__init__(config, announce)
        self._background = background
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining is not None:
            # Its children end with it, and the store survives the death of any process.
            os._exit(128 + sig)
        self._draining = asyncio.ensure_future(self._drain(sig, frame))

    async def _drain(self, sig: int, frame: FrameType | None) -> None:
        await self._background.drain()
        super().handle_exit(sig, frame)
