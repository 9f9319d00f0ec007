"""A provider on loopback: answers from a script, breaks as it is told to, and refuses what the wire forbids.

A subclass says what a request must look like (`check`) and how a turn is written, whole or as a stream. What is
refused is answered with 400, as the provider would, and kept in `refused`, so that a test can say there was nothing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNgAAAAAgAB5Sfe/AAAAABJRU5ErkJggg=="
_DATA_URL = re.compile(r"data:image/(png|jpeg|gif|webp);base64,(.+)", re.DOTALL)


class WireError(Exception):
    """A request that the provider would refuse."""


def demand(holds: object, problem: str) -> None:
    if not holds:
        raise WireError(problem)


def fields(value: Any, where: str, required: dict[str, Any], optional: dict[str, Any]) -> None:
    """Demand an object with these fields, each of its type, and no others."""
    demand(isinstance(value, dict), f"{where} must be an object, not {value!r}")
    missing = required.keys() - value.keys()
    demand(not missing, f"{where} lacks {sorted(missing)}")
    known = {**required, **optional}
    unknown = value.keys() - known.keys()
    demand(not unknown, f"Unknown parameter: '{where}.{sorted(unknown)}'")
    for name, entry in value.items():
        wanted = known[name]
        if isinstance(wanted, tuple) and all(isinstance(one, str) for one in wanted):
            demand(entry in wanted, f"{where}.{name} must be one of {wanted}, not {entry!r}")
        else:
            right = isinstance(entry, wanted)
            right = right and not (isinstance(entry, bool) and wanted is int)
            demand(right, f"{where}.{name} must be {wanted}, not {entry!r}")


def image_url(url: str, where: str) -> None:
    """Demand a data URL of an image that is one."""
    found = _DATA_URL.fullmatch(url)
    demand(found, f"{where} is no data URL of an image: {url[:40]}")
    try:
        base64.b64decode(found[2], validate=True)
    except ValueError:
        raise WireError(f"{where} is not base64") from None


@dataclass
class Status:
    """An error status instead of an answer."""

    code: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Hang:
    """No answer within any time limit."""


@dataclass
class HangUp:
    """The connection closes without an answer."""


@dataclass
class BreakOff:
    """A stream that ends in the middle of this turn, after so many events; cleanly, or torn."""

    turn: Any
    events: int
    torn: bool = False


@dataclass
class StreamError:
    """A stream that begins well and then says an error, after so many events."""

    turn: Any
    events: int
    error: dict[str, Any]


@dataclass
class Raw:
    """These bytes instead of an answer."""

    body: bytes
    content_type: str = "application/json"


class LoopbackProvider:
    """One provider, serving on 127.0.0.1 while inside `async with`."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.refused: list[str] = []
        self.closing = asyncio.Event()
        self.url = ""

    def check(self, request: web.Request, body: dict[str, Any]) -> None:
        """Raise `WireError` for what the provider would refuse."""
        raise NotImplementedError

    def streams(self, request: web.Request, body: dict[str, Any]) -> bool:
        """Say whether the request wants its answer as a stream."""
        return bool(body.get("stream"))

    def whole(self, turn: Any, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer that a turn of the script is."""
        raise NotImplementedError

    def events(self, turn: Any, body: dict[str, Any]) -> list[bytes]:
        """Return the same as the events of a stream, as they stand on the wire."""
        raise NotImplementedError

    def error_event(self, error: dict[str, Any]) -> bytes:
        """Return an error as the provider says it inside a stream."""
        raise NotImplementedError

    def refusal(self, problem: str) -> dict[str, Any]:
        """Return the body of a 400."""
        return {"error": {"message": problem, "type": "invalid_request_error", "code": None}}

    def listing(self, request: web.Request) -> web.Response:
        """Return the answer to a GET."""
        return web.json_response(self.refusal(f"Invalid URL (GET {request.path})"), status=404)

    async def handle_get(self, request: web.Request) -> web.Response:
        return self.listing(request)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.paths.append(request.path)
        try:
            self.check(request, body)
            demand(self.script, "the script is over")
        except WireError as error:
            self.refused.append(str(error))
            return web.json_response(self.refusal(str(error)), status=400)
        return await self.answer(request, body, self.script.pop(0))

    async def answer(
        self, request: web.Request, body: dict[str, Any], turn: Any
    ) -> web.StreamResponse:
        if isinstance(turn, Status):
            return web.json_response(turn.body or {}, status=turn.code, headers=turn.headers)
        if isinstance(turn, Raw):
            return web.Response(body=turn.body, content_type=turn.content_type)
        if isinstance(turn, Hang):
            await self.closing.wait()
            return web.Response(status=500)
        if isinstance(turn, HangUp):
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if self.streams(request, body):
            return await self.stream(request, body, turn)
        return web.json_response(self.whole(turn, body))

    async def stream(
        self, request: web.Request, body: dict[str, Any], turn: Any
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        spoken = self.events(getattr(turn, "turn", turn), body)
        if isinstance(turn, BreakOff):
            spoken = spoken[: turn.events]
        if isinstance(turn, StreamError):
            spoken = [*spoken[: turn.events], self.error_event(turn.error)]
        for event in spoken:
            await response.write(event)
        if isinstance(turn, BreakOff) and turn.torn:
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write_eof()
        return response

    async def __aenter__(self) -> LoopbackProvider:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/{path:.*}", self.handle)
        app.router.add_get("/{path:.*}", self.handle_get)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.closing.set()
        await self.runner.cleanup()


@asynccontextmanager
async def closing_agent(agent: Any) -> AsyncIterator[Any]:
    """Close an agent's connections in the end."""
    try:
        yield agent
    finally:
        await agent.aclose()


P = TypeVar("P", bound=LoopbackProvider)


@contextmanager
def beside(provider: P) -> Iterator[P]:
    """Serve from a thread of its own, for what runs an event loop itself."""
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with provider:
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        ready.wait()
        yield provider
    finally:
        over.set()
        thread.join()
