"""A web server of the package's pages on this machine's loopback, as a part of an environment."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

from hud.benchmarks.miniwob.benchmarks import PACKAGE
from hud.environment.part import OpenPart, Part
from hud.environment.run import EnvironmentRun


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: standard error is the caller's."""


class OpenSite(OpenPart):
    """One run's server."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/miniwob/"


class Site(Part[OpenSite]):
    """The pages, served for each run at a port of its own."""

    name = "site"

    @asynccontextmanager
    async def open(self, run: EnvironmentRun) -> AsyncIterator[OpenSite]:
        del run
        folder = Path(str(metadata.distribution(PACKAGE.name).locate_file("miniwob/html")))
        files = functools.partial(_Files, directory=str(folder))
        server = ThreadingHTTPServer(("127.0.0.1", 0), files)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield OpenSite(server.server_port)
        finally:
            server.shutdown()
            server.server_close()
