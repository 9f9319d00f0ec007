"""Access control of `hud view`: pages of the embedded platform for a single browser, by a one-time token."""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import parse_qs

from fastapi import FastAPI
from markupsafe import Markup
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from hud_dashboard.rendering import refusal_page
from hud_platform.access.page_paths import PagePaths
from hud_platform.access.request_headers import cookie, header, wants_page
from hud_platform.access.response_headers import ResponseHeaders

_ADVICE = Markup(
    "For a new address, stop <code>hud view</code> with <kbd>Ctrl</kbd>+<kbd>C</kbd> in its terminal, and start it again."
)


class LocalDoor:
    """Middleware that serves only pages, only under this machine's own names, and only to the browser with the token.
    Other users of this machine can connect to the port, and any web site can send requests through a browser: the
    token refuses the former, the check of `Host` the latter (their names may resolve to this machine).
    """

    def __init__(self, app: FastAPI, port: int) -> None:
        """`app`: that of a platform, with its pages."""
        self.app = app
        self._paths: PagePaths = app.state.parts.page_paths
        self.token: str | None = secrets.token_urlsafe(24)
        """One-time token: valid for the first browser that opens the address."""
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie = f"hud_view_{port}"  # Cookies are shared by all ports of a host.
        self._session = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._answer(scope)(scope, receive, send)

    def _answer(self, scope: Scope) -> ASGIApp:
        """Return the application for a request: the pages, a redirect, or a refusal."""
        if header(scope, b"host") not in self._hosts:
            return _refusal(scope, 403, "This address is not one of hud view's.", _ADVICE)
        if self._known(scope):
            if b"token=" in scope["query_string"]:  # The token must not stay in the address bar.
                return _redirect(scope["path"])
            if self._paths.is_page(scope):
                return self.app
            return _refusal(
                scope,
                404,
                "hud view serves the dashboard only; hud up serves the API and the documentation, too.",
            )
        if self._redeem(scope):
            opened = _redirect(scope["path"])
            opened.set_cookie(self._cookie, self._session, httponly=True, samesite="lax")
            return opened
        if scope["path"].startswith("/static/"):
            return self.app
        return _refusal(
            scope,
            403,
            "Open the address that hud view printed; it works once, in one browser.",
            _ADVICE,
        )

    def _known(self, scope: Scope) -> bool:
        return hmac.compare_digest(cookie(scope, self._cookie).encode(), self._session.encode())

    def _redeem(self, scope: Scope) -> bool:
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self.token is None or not hmac.compare_digest(token.encode(), self.token.encode()):
            return False
        self.token = None
        return True


def _redirect(place: str) -> Response:
    return RedirectResponse(place, 303, headers={"cache-control": "no-store"})


def _refusal(scope: Scope, status: int, sentence: str, advice: Markup | None = None) -> ASGIApp:
    """Refuse a request with a sentence: as a page for browsers, as JSON for programs."""
    if not wants_page(scope):
        return JSONResponse({"detail": sentence}, status)
    return ResponseHeaders(refusal_page(status, sentence, advice))
