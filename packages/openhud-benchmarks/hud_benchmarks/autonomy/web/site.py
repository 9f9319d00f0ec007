"""`Site`: the web server of one run on this machine's loopback, as a part of an environment."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hud.environment.part import OpenPart, Part
from hud.environment.run import EnvironmentRun
from hud.environment.screens.run_folders import run_folder
from hud_benchmarks.autonomy.web.application import WebApplication

_BODY_BYTES = 1 << 20
"""Largest form: bodies are held in the memory of the environment's process."""
_DATABASE_PAGES = 1 << 14
"""Largest database, in pages of 4 KiB: its copy for the grade is held in memory, too."""


class OpenSite(OpenPart):
    """One run's server and database."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/"
        self._file = folder / "database.sqlite"
        self._db: sqlite3.Connection | None = None
        self._app: ASGIApp | None = None

    def begin(self, application: WebApplication, seed: int) -> None:
        """Serve an application over a fresh copy of its seeded database, in place of the one before."""
        self.close()
        self._file.write_bytes(application.database(seed).serialize())
        # The server's thread is the only one that uses it until the run ends.
        self._db = sqlite3.connect(self._file, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute(f"PRAGMA max_page_count = {_DATABASE_PAGES}")
        pages = application.make_pages()
        self._app = pages.serve(self._db, accounts=application.user is not None)

    def state(self) -> sqlite3.Connection:
        """Return a copy of the database as it is now, in memory."""
        copy = sqlite3.connect(":memory:")
        source = sqlite3.connect(self._file)
        source.backup(copy)
        source.close()
        return copy

    def close(self) -> None:
        """Close the database."""
        if self._db is not None:
            self._db.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._app is not None
        if _has_large_body(scope):
            refusal = PlainTextResponse("This form is too large.", 413, {"connection": "close"})
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _has_large_body(scope: Scope) -> bool:
    """Return True for a body beyond the limit, or of unknown length, which no form of a browser's has."""
    headers = Headers(scope=scope)
    return "transfer-encoding" in headers or int(headers.get("content-length", 0)) > _BODY_BYTES


class Site(Part[OpenSite]):
    """A web server for each run, at a port of its own."""

    name = "site"

    @asynccontextmanager
    async def open(self, run: EnvironmentRun) -> AsyncIterator[OpenSite]:
        del run
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # Connections wait from here on, until the thread takes them.
        async with run_folder("autonomy") as folder:
            opened = OpenSite(folder, listening.getsockname()[1])
            server = uvicorn.Server(
                uvicorn.Config(
                    opened, log_config=None, access_log=False, lifespan="off", ws="none", loop="asyncio"
                )
            )  # fmt: skip
            thread = threading.Thread(
                target=server.run, kwargs={"sockets": [listening]}, daemon=True
            )
            thread.start()
            try:
                yield opened
            finally:
                server.should_exit = True
                await asyncio.to_thread(thread.join)
                opened.close()
