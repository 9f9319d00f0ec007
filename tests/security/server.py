"""A server with keys for attacks in this process: its routes, its callers, and requests of any form."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import Any

from hud_dashboard import static_files
from hud_dashboard.pages import ROUTERS as PAGE_ROUTERS
from hud_platform.access import Identity
from hud_platform.access.teams import Teams
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.store.tables import LOCAL_TEAM

NOBODY_S = "0" * 32
"""An id that nothing has."""
REFUSED, CLOSED = (401, 403), 4003
HTML = [(b"accept", b"text/html")]
SAME_SITE = [(b"sec-fetch-site", b"same-origin")]


@dataclass(frozen=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    page: bool

    @property
    def name(self) -> str:
        """Name in the tables of `rules.py`."""
        return f"{self.method} {self.path.removesuffix('.json') if self.page else self.path}"

    def at(self, ids: dict[str, str]) -> str:
        """Return the path with ids; a parameter without one gets an id of nobody."""
        ids = {"call": f"{NOBODY_S}:generateContent", "action": "cordon", "number": "0", **ids}
        return re.sub(r"{([^}:]+)(:path)?}", lambda found: ids.get(found[1], NOBODY_S), self.path)


@dataclass
class Answer:
    """Response to a request; of an event stream, its beginning."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def api_routes(app) -> list[Route]:
    """Return every route of the application, those too that are not in its OpenAPI document."""
    return [
        Route(method, route.path, page=False)
        for route in app.routes
        for method in sorted(getattr(route, "methods", None) or {"WEBSOCKET"})
        if method != "HEAD"
    ]


def page_routes() -> list[Route]:
    """Return every route of the dashboard."""
    return [
        Route(method, route.path, page=True)
        for router in (static_files.router, *PAGE_ROUTERS)
        for route in router.routes
        for method in sorted(route.methods)
        if method != "HEAD"
    ]


@dataclass(frozen=True)
class Caller:
    """Sender of requests."""

    name: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    scope: str | None = None
    """Highest scope; None: none."""
    worker: bool = False
    inference: bool = False
    valid: bool = True
    """False for credentials that must open nothing."""
    browser: bool = False
    """True for a session, which opens pages alone."""


class AttackedServer:
    """One application with keys, and callers of every kind."""

    def __init__(self, home) -> None:
        self.app = create_app(PlatformConfig(home, keys=True))
        self.parts = self.app.state.parts
        self.others = Teams(self.parts.store).find_or_create("others").id

    def key(self, team: str = LOCAL_TEAM, scope: str = "admin", **options) -> str:
        """Return the secret of a new key."""
        return self.parts.keys.mint(scope, team, scopes=(scope,), **options)[1]

    def callers(self) -> dict[str, Caller]:
        """Return one caller of each kind, by name."""
        keys, passes = self.parts.keys, self.parts.passes
        revoked = self.key()
        keys.revoke(LOCAL_TEAM, keys.find(revoked).id)
        expired = self.key(expires_in=1e-6)
        admin = Identity(LOCAL_TEAM, frozenset({"admin"}))
        forged = passes.make(Identity(LOCAL_TEAM, frozenset({"read"})), 600)
        larger = passes.make(admin, 600).partition(".")[0]
        rollout = Identity(LOCAL_TEAM, frozenset({"run"}), inference_only=True)
        worker = Identity(LOCAL_TEAM, frozenset(), worker=True)
        bad = {
            "an unknown key": "hud_" + "x" * 43,
            "a revoked key": revoked,
            "an expired key": expired,
            "an expired pass": passes.make(admin, -1),
            "the content of one pass with the signature of another": f"{larger}.{forged.partition('.')[2]}",
            "a pass without a signature": larger,
        }
        made = [
            Caller("nobody", valid=False),
            *(Caller(name, bearer(secret), valid=False) for name, secret in bad.items()),
            *(
                Caller(f"the first team's {scope}", bearer(self.key(scope=scope)), scope)
                for scope in ("read", "run", "train", "admin")
            ),
            Caller("another team's member", bearer(self.key(self.others, "run")), "run"),
            Caller("another team's admin", bearer(self.key(self.others)), "admin"),
            Caller("a pass of the fleet", bearer(self.key(scope="fleet")), worker=True),
            Caller("the server's own worker", bearer(passes.make(worker, 600)), worker=True),
            Caller(
                "the pass of a rollout", bearer(passes.make(rollout, 600)), "run", inference=True
            ),
            Caller("a signed-in reader", self.cookie(self.key(scope="read")), "read", browser=True),
            Caller("a signed-in admin", self.cookie(self.key()), "admin", browser=True),
            Caller("an ended session", ((b"cookie", b"hud_session=" + b"x" * 43),), valid=False),
        ]
        return {one.name: one for one in made}

    def cookie(self, secret: str) -> tuple[tuple[bytes, bytes], ...]:
        """Return the header of a browser that signed in with a key."""
        session = self.parts.web_sessions.begin(self.parts.keys.find(secret))
        return ((b"cookie", f"hud_session={session}".encode()),)

    async def ask(
        self, method: str, path: str, headers=(), body: Any = None, seconds: float = 60.0
    ) -> Answer:
        """Send one request; an event stream is left after its first event. `body`: bytes, or an object of JSON."""
        sent = [(b"host", b"platform"), *headers]
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.append((b"content-type", b"application/json"))
        if body is not None:
            sent.append((b"content-length", str(len(body)).encode()))
        path, _, query = path.partition("?")
        scope = {
            "type": "websocket" if method == "WEBSOCKET" else "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "scheme": "http",
            "headers": sent,
            "client": ("10.1.1.1", 1),
            "server": ("platform", 80),
            "subprotocols": [],
        }
        answer, over = Answer(), asyncio.Event()
        waiting = (
            [{"type": "websocket.connect"}]
            if method == "WEBSOCKET"
            else [{"type": "http.request", "body": body or b"", "more_body": False}]
        )

        async def receive():
            if waiting:
                return waiting.pop()
            await over.wait()
            kind = scope["type"]
            return {"type": f"{kind}.disconnect", "code": 1006}

        async def send(message):
            match message["type"]:
                case "http.response.start":
                    answer.status = message["status"]
                    for name, value in message.get("headers", ()):
                        answer.headers[name.decode().lower()] = value.decode("latin-1")
                case "http.response.body":
                    answer.body += message.get("body", b"")
                    if message.get("more_body") and "event-stream" in answer.headers.get(
                        "content-type", ""
                    ):
                        over.set()
                case "websocket.close":
                    answer.status = message["code"]
                    answer.body = message.get("reason", "").encode()

        running = asyncio.create_task(self.app(scope, receive, send))
        left = asyncio.create_task(over.wait())
        await asyncio.wait({running, left}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        if not running.done():
            running.cancel()
            assert over.is_set(), f"{method} {path} did not answer within {seconds:g} s"
        await asyncio.gather(running, left, return_exceptions=True)
        if not running.cancelled() and running.exception() is not None and not answer.status:
            raise running.exception()
        return answer


def bearer(secret: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header of a key."""
    return ((b"authorization", f"Bearer {secret}".encode()),)
