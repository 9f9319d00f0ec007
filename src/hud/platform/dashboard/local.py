"""The door of `hud view`: pages of the embedded platform, for the one browser that was given the address."""

from __future__ import annotations

import hmac
import secrets
from typing import Any
from urllib.parse import parse_qs

from hud.platform.dashboard.gate import App, Receive, Send, refuse
from hud.platform.dashboard.paths import cookie, header, is_page


class LocalDoor:
    """Serves pages only, on this machine's own names only, and only to who opened the address with the token.

    Other users of this machine can reach the port, and any web site can have a browser ask it: a token keeps the
    first out, the check of `Host` the second (a name of theirs may lead to this machine).
    """

    def __init__(self, app: App, port: int) -> None:
        self.app = app
        self.token: str | None = secrets.token_urlsafe(24)
        """Good for one browser: the first that opens it."""
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie = f"hud_view_{port}"  # Cookies of one host are shared by its ports.
        self._session = secrets.token_urlsafe(32)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif header(scope, b"host") not in self._hosts:
            await refuse(send, 403, "This address is not one of hud view's.")
        elif self._known(scope):
            await self._let_in(scope, receive, send)
        elif self._redeem(scope):
            kept = f"{self._cookie}={self._session}; Path=/; HttpOnly; SameSite=Lax"
            await _redirect(send, scope["path"], kept)
        elif scope["path"].startswith("/static/"):
            await self.app(scope, receive, send)
        else:
            await refuse(send, 403, "Open the address that hud view printed; it works once.")

    async def _let_in(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if b"token=" in scope["query_string"]:  # Not to be left in the address bar.
            await _redirect(send, scope["path"])
        elif is_page(scope):
            await self.app(scope, receive, send)
        else:
            await refuse(send, 404, "hud view serves pages only; hud up serves the API.")

    def _known(self, scope: dict[str, Any]) -> bool:
        return hmac.compare_digest(cookie(scope, self._cookie).encode(), self._session.encode())

    def _redeem(self, scope: dict[str, Any]) -> bool:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self.token is None or not hmac.compare_digest(given.encode(), self.token.encode()):
            return False
        self.token = None
        return True


async def _redirect(send: Send, place: str, kept: str | None = None) -> None:
    headers = [
        (b"location", place.encode()),
        (b"content-length", b"0"),
        (b"cache-control", b"no-store"),
    ]
    if kept is not None:
        headers.append((b"set-cookie", kept.encode()))
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
