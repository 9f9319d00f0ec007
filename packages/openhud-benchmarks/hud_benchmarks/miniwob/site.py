"""A web server of the package's pages on this machine's loopback, as a part of an environment."""

from __future__ import annotations

import base64
import functools
import hashlib
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

from hud.environment.part import OpenPart, Part
from hud.environment.run import EnvironmentRun
from hud_benchmarks.miniwob.benchmarks import PACKAGE


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: standard error is the caller's."""

    def guess_type(self, path: Any) -> str:
        kind = super().guess_type(path)
        return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind

    def end_headers(self) -> None:
        path = Path(self.translate_path(self.path))
        own = path.read_text(encoding="utf-8") if path.suffix == ".html" and path.is_file() else ""
        self.send_header("Content-Security-Policy", security_policy(own))
        super().end_headers()


class _InlineScripts(HTMLParser):
    """Texts of the script elements of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.texts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script"
        if self._inside:
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = False


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing of an address that names no file, or of a browser that left: standard error is the caller's."""


@functools.cache
def security_policy(page: str) -> str:
    """Return the content security policy of a page's text: it executes its own scripts, and none that is typed into it."""
    scripts = _InlineScripts()
    scripts.feed(page.replace("\r\n", "\n"))
    digests = (hashlib.sha256(text.encode()).digest() for text in scripts.texts if text)
    allowed = ["'self'", *(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)]
    if "jscolor" in page:  # It evaluates its settings.
        allowed.append("'unsafe-eval'")
    return f"script-src {' '.join(allowed)}; object-src 'none'; frame-src 'none'; base-uri 'none'"


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
        server = _Server(("127.0.0.1", 0), files)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield OpenSite(server.server_port)
        finally:
            server.shutdown()
            server.server_close()
