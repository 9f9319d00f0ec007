"""The embedded platform's pages behind a port of this machine, until they are told to stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import httpx
import uvicorn

from hud.errors import StoreError, UsageError
from hud.platform.application import PlatformConfig, create_app
from hud.platform.dashboard.local import LocalDoor
from hud.platform.http_connections import Bounds, allowed_connections, settings_of
from hud.platform.server import freeze_memory, listen

HOST = "127.0.0.1"
FIRST_ASKED = ("/jobs", "/static/any/style.css")
"""A page and a file as every browser asks for them first."""
GRACE_SECONDS = 5


def view(config: PlatformConfig, port: int, announce: Callable[[str], None]) -> None:
    """Serve the pages until SIGINT or SIGTERM; `announce` is called with the address to open.

    Raises `UsageError` for a port that cannot be had, and for a store that cannot be opened.
    """
    listening = listen(HOST, port)
    bound: int = listening.getsockname()[1]
    try:
        app = create_app(config)
    except StoreError as error:
        raise UsageError(str(error)) from error
    door = LocalDoor(app, bound)
    settings = uvicorn.Config(
        door,
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=GRACE_SECONDS,
        **settings_of(Bounds(connections=allowed_connections(config.connections))),
    )
    address = f"http://{HOST}:{bound}/?token={door.token}"
    drawn = httpx.ASGITransport(app, raise_app_exceptions=False)
    server = _Server(settings, app.state.parts.stopping, drawn, lambda: announce(address))
    with asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listening]))


class _Server(uvicorn.Server):
    """Tells when it is up; told to stop, it ends the streams of open pages first, which would never end."""

    def __init__(
        self,
        config: uvicorn.Config,
        stopping: asyncio.Event,
        pages: httpx.ASGITransport,
        started: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._pages = pages
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            await self._draw_once()
            freeze_memory()
            self._started()

    async def _draw_once(self) -> None:
        """Draw the first page, so that who opens it does not wait for modules, templates and files to be loaded."""
        async with httpx.AsyncClient(transport=self._pages, base_url=f"http://{HOST}") as browser:
            for path in FIRST_ASKED:
                await browser.get(path)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.set()
        await super().shutdown(sockets)
        # Uvicorn would raise the signal again, as if nothing had handled it; a stop that was asked for is no failure.
        self._captured_signals.clear()
