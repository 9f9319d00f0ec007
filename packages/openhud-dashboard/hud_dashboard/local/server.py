"""Local server: the pages of the embedded platform on a port of this machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import httpx
import uvicorn
from fastapi import FastAPI

from hud.errors import StoreError, UsageError
from hud_dashboard.local.door import LocalDoor
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.server import AnnouncedServer, listen, run, server_settings

HOST = "127.0.0.1"
FIRST_ASKED = ("/jobs", "/static/any/style.css")
"""First requests of a browser: a page and a static file."""
GRACE_SECONDS = 5


def view(config: PlatformConfig, port: int, announce: Callable[[str], None]) -> None:
    """Serve the pages until SIGINT or SIGTERM; `announce` is called with the address to open.

    Raises `UsageError` for an unavailable port, and for a store that cannot be opened.
    """
    listening = listen(HOST, port)
    bound: int = listening.getsockname()[1]
    try:
        app = create_app(config)
    except StoreError as error:
        raise UsageError(str(error)) from error
    door = LocalDoor(app, bound)
    settings = server_settings(door, config, GRACE_SECONDS)
    address = f"http://{HOST}:{bound}/?token={door.token}"
    run(_Server(settings, app, lambda: announce(address)), listening)


class _Server(AnnouncedServer):
    """Server that closes the event streams of open pages before it stops."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, announce: Callable[[], None]) -> None:
        super().__init__(config, announce)
        self._stopping: asyncio.Event = app.state.parts.stopping
        self._pages = httpx.ASGITransport(app, raise_app_exceptions=False)

    async def warm_up(self) -> None:
        """Render the first page, so that modules, templates and files are loaded before the first request."""
        async with httpx.AsyncClient(transport=self._pages, base_url=f"http://{HOST}") as browser:
            for path in FIRST_ASKED:
                await browser.get(path)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.set()
        await super().shutdown(sockets)
