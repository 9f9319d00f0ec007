"""Authentication middleware: refuses requests without a valid key. Plain ASGI, for HTTP and WebSockets."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, quote

from hud import exact_json
from hud.errors import HudError
from hud.inference.dialects.codec import Refusal
from hud.inference.dialects.registry import dialects
from hud_platform.access.admission import ACCESS_DENIED, Admission, KeyEndedError
from hud_platform.access.identity import Identity
from hud_platform.access.keys import Keys
from hud_platform.access.limits import Limits
from hud_platform.access.page_paths import SIGN_IN, PagePaths
from hud_platform.access.passes import PREFIX, Passes
from hud_platform.access.paths import refusal
from hud_platform.access.request_dialect import dialect_of
from hud_platform.access.request_headers import cookie, header, wants_page
from hud_platform.access.web_sessions import COOKIE, WebSessions

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json")
OPEN_BELOW = (
    "/docs/",
    "/auth/device",
    "/uploads/",
    "/downloads/",
    "/sdk-events/",
    "/v3/api/sdk-events/",
)
"""Paths that need no key: health, documentation, login, uploads and downloads whose URL is signed, and usage events, which are dropped."""
_EVENTS = "/events/"
"""Path prefix of the pages' event streams."""
NO_KEY = "This request carries no key."


class Door:
    """Sets `scope["state"]["identity"]`, or responds with 401 or 429. Cookies are accepted for pages only."""

    def __init__(
        self,
        app: App,
        keys: Keys,
        passes: Passes,
        limits: Limits,
        sessions: WebSessions,
        pages: PagePaths,
        key_prefixes: Sequence[str] = (),
    ) -> None:
        """`key_prefixes`: what clients of foreign protocols put before a key in `x-api-key`."""
        self.app = app
        self.key_prefixes = key_prefixes
        self.keys = keys
        self.passes = passes
        self.limits = limits
        self.sessions = sessions
        self.pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or is_open(scope["path"]):
            await self.app(scope, receive, send)
            return
        secret = secret_of(scope, self.key_prefixes)
        if secret is None and self.pages.is_page(scope):
            await self._show(scope, receive, send)
            return
        try:
            who = await self._identify(secret) if secret else None
            # The gateway records refusals of a run's calls.
            if who is not None and who.run is None:
                await self.limits.count(who)
        except HudError as error:  # The store is unavailable, or the key has used up its limits.
            await refuse_error(scope, send, error)
            return
        if who is None:
            detail = "This key is unknown, expired or revoked." if secret else NO_KEY
            await refuse(scope, send, 401, detail, {"www-authenticate": "Bearer"})
            return
        bounds = refusal(who, scope["path"])
        if bounds is not None:
            await refuse(scope, send, 403, bounds, {})
            return
        scope.setdefault("state", {})["identity"] = who
        if secret is None or secret.startswith(PREFIX):
            await self.app(scope, receive, send)
            return
        key = secret

        async def recheck() -> bool:
            return await self._identify(key) is not None

        await self._admit(Admission(send, recheck), scope, receive, send)

    async def _admit(
        self, admission: Admission, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request for as long as its key is valid."""
        socket = scope["type"] == "websocket"
        may_be_silent = socket or scope["path"].startswith(_EVENTS)
        passed = send if socket else admission.send
        try:
            async with _watched(admission, may_be_silent):
                await self.app(scope, receive, passed)
        except Exception:
            if not admission.ended:
                raise
        if not admission.ended or admission.finished:
            return
        if socket:
            await admission.close()
        elif not admission.begun:
            await refuse_error(scope, admission.send, KeyEndedError())
        elif self.pages.is_page(scope):
            await admission.send({"type": "http.response.body", "body": b""})
        # Aborts the connection, which is the client's only sign of an incomplete response.

    async def _show(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a page to a browser with a valid cookie, or redirect it to the sign-in page."""
        secret = cookie(scope, COOKIE)
        try:
            who = await asyncio.to_thread(self.sessions.find, secret) if secret else None
        except HudError as error:
            await refuse_error(scope, send, error)
            return
        if who is not None:
            scope.setdefault("state", {})["identity"] = who

            async def recheck() -> bool:
                return await asyncio.to_thread(self.sessions.find, secret) is not None

            await self._admit(Admission(send, recheck), scope, receive, send)
        elif self.pages.is_open(scope["path"]):
            await self.app(scope, receive, send)
        elif wants_page(scope) and self.pages.is_open(SIGN_IN):
            await _send_to_signin(scope, send)
        else:
            await refuse(scope, send, 401, NO_KEY, {})

    async def _identify(self, secret: str) -> Identity | None:
        if secret.startswith(PREFIX):
            return self.passes.read(secret)
        key = self.keys.cached(secret)
        if key is None:
            key = await asyncio.to_thread(self.keys.find, secret)
        return None if key is None else key.identity


def is_open(path: str) -> bool:
    """True for paths that need no key."""
    return path in OPEN or path.startswith(OPEN_BELOW)


def secret_of(scope: Scope, prefixes: Sequence[str] = ()) -> str | None:
    """Return the key of a request, from any header or parameter in which clients send it, without the prefix of a client."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, secret = value.decode("latin-1").partition(" ")
            if kind.lower() == "bearer" and secret.strip():
                return str(secret.strip())
        elif value and name in _key_headers():
            key = str(value.decode("latin-1"))
            prefix = next((prefix for prefix in prefixes if key.startswith(prefix)), "")
            return key.removeprefix(prefix)
    if b"key=" in scope["query_string"]:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        secrets = query.get("api_key") or query.get("key")
        return secrets[0] if secrets else None
    return None


@functools.cache
def _key_headers() -> frozenset[bytes]:
    """Return the headers in which the dialects' clients send keys."""
    return frozenset(dialect.key_header for dialect in dialects().values() if dialect.key_header)


async def _send_to_signin(scope: Scope, send: Send) -> None:
    query = scope["query_string"].decode("latin-1")
    wanted = scope["path"] + (f"?{query}" if query else "")
    place = f"{SIGN_IN}?next={quote(wanted, safe='/')}" if scope["method"] == "GET" else SIGN_IN
    # For a fragment of a page, the browser would follow a redirect and insert the sign-in form into the page.
    inside = bool(header(scope, b"hx-request"))
    headers = {"hx-redirect": SIGN_IN} if inside else {"location": place}
    await _send(send, 401 if inside else 303, b"", headers)


@asynccontextmanager
async def _watched(admission: Admission, watched: bool) -> AsyncIterator[None]:
    """Cancel the block when the key is no longer valid, if `watched`."""
    if not watched:
        yield
        return
    task = asyncio.current_task()
    assert task is not None

    def stop(watch: asyncio.Task[None]) -> None:
        if not watch.cancelled():
            task.cancel()

    watch = asyncio.create_task(admission.watch())
    watch.add_done_callback(stop)
    try:
        yield
    except asyncio.CancelledError:
        if not watch.done() or not admission.ended:
            raise
        task.uncancel()
    finally:
        watch.remove_done_callback(stop)
        watch.cancel()


async def refuse_error(scope: Scope, send: Send, error: HudError) -> None:
    """Respond with the sentence and the status of an error."""
    await refuse(scope, send, error.status, str(error), retry_headers(error))


def retry_headers(error: HudError) -> dict[str, str]:
    """Return the `Retry-After` header of an error that has one."""
    wait: float | None = getattr(error, "retry_after", None)
    return {} if wait is None else {"retry-after": str(max(1, math.ceil(wait)))}


async def refuse(
    scope: Scope, send: Send, status: int, detail: str, headers: dict[str, str]
) -> None:
    if scope["type"] == "websocket":
        # Accepted first: before, a server can only respond with 403, and clients of build logs expect the close code.
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": ACCESS_DENIED, "reason": detail[:120]})
        return
    # `detail` is this platform's field; the rest is the error of the client's dialect.
    body = exact_json.dumps(dialect_of(scope).codec.error(Refusal(status, detail)))
    await _send(send, status, body, {**headers, "content-type": "application/json"})


async def _send(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    sent = {**headers, "content-length": str(len(body))}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
