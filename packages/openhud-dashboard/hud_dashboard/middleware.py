"""Middleware in front of the API: routes requests to the pages and refuses cross-site requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hud_dashboard.page_paths import PATHS
from hud_platform.access.page_paths import SAFE
from hud_platform.access.request_headers import header, wants_page

if TYPE_CHECKING:
    from hud_platform.parts import Parts


class Dashboard:
    """Middleware that serves the pages and passes other requests on to the application."""

    def __init__(self, app: ASGIApp, parts: Parts) -> None:
        self.app = app
        self.parts = parts
        self._pages: ASGIApp | None = None
        self._loading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._serves(scope):
            await self.app(scope, receive, send)
            return

        async def send_fresh(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                if not any(name == b"cache-control" for name, _ in headers):
                    fresh = (b"cache-control", b"no-store")
                    message = {**message, "headers": [*headers, fresh]}
            await send(message)

        if scope["method"] not in SAFE and not comes_from_here(scope):
            await _refusal(scope)(scope, receive, send_fresh)
            return
        pages = await self._loaded()
        await pages(scope, receive, send_fresh)

    def _serves(self, scope: Scope) -> bool:
        """Return True for a page of the dashboard, and for one that nothing has."""
        paths = self.parts.page_paths
        return paths.is_page(scope) and (PATHS.hold(scope["path"]) or not paths.hold(scope["path"]))

    async def _loaded(self) -> ASGIApp:
        """Return the application of the pages; created at the first request for a page, which most embedded platforms never get."""
        if self._pages is None:
            async with self._loading:
                if self._pages is None:
                    # In a thread: imports and routes take seconds on a loaded machine, and would block every other request.
                    self._pages = await asyncio.to_thread(self._created)
        return self._pages

    def _created(self) -> ASGIApp:
        from hud_dashboard.application import create_pages

        return create_pages(self.parts)


def _refusal(scope: Scope) -> ASGIApp:
    """Refuse a request of another site: as a page for browsers, as JSON for programs."""
    sentence = "This request comes from another site."
    if not wants_page(scope):
        return JSONResponse({"detail": sentence}, 403)
    # Templates are loaded for the first page, which most embedded platforms never get.
    from hud_dashboard.rendering import refusal_page

    return refusal_page(403, f"{sentence} Open the page here, and send it again.")


def comes_from_here(scope: Scope) -> bool:
    """Return True for a request from one of the dashboard's pages, or from a program with a key; False for other sites.
    Browsers send the origin in `Sec-Fetch-Site`; on plain HTTP only in `Origin`.
    """
    if header(scope, b"authorization") or header(scope, b"x-api-key"):
        return True
    site = header(scope, b"sec-fetch-site")
    if site:
        return site == "same-origin"
    origin = header(scope, b"origin")
    return bool(origin) and urlsplit(origin).netloc == header(scope, b"host")
