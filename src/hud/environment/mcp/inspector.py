"""A page to test an environment interactively: call its tools, start its tasks and grade an answer.

The page is `inspect.html`; its requests use their own run. Only this machine's browser may use it: requests from other
sites, or under another host name, are refused.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from hud.environment.connection import Connection
from hud.environment.mcp.client_runs import Runs
from hud.errors import HudError
from hud.trace import Message

_PAGE = Path(__file__).with_name("inspect.html")
_VISITOR = "inspect"
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_Answer = Callable[[Connection, dict[str, Any]], Awaitable[dict[str, Any]]]


class Inspector:
    """The page's routes. `about` returns the served environment, with a `serial` that changes with it."""

    def __init__(self, runs: Runs, about: Callable[[], dict[str, Any]], host: str) -> None:
        self._runs = runs
        self._about = about
        self._hosts = _LOOPBACK | {host}

    @property
    def routes(self) -> list[Route]:
        """Routes of the web application besides MCP."""
        asked: dict[str, _Answer] = {
            "show": _show,
            "call": _call,
            "start": _start,
            "grade": _grade,
        }
        own_page = [Middleware(BaseHTTPMiddleware, dispatch=self._admit)]
        return [
            Route(path, endpoint, methods=[method], middleware=own_page)
            for method, path, endpoint in (
                ("GET", "/", self._page),
                ("GET", "/inspect/about", self._tell),
                ("POST", "/inspect/reset", self._reset),
                *(("POST", f"/inspect/{name}", self._asked(each)) for name, each in asked.items()),
            )
        ]

    async def _page(self, _: Request) -> Response:
        return HTMLResponse(_PAGE.read_text(encoding="utf-8"))

    async def _tell(self, _: Request) -> Response:
        return JSONResponse(self._about())

    async def _reset(self, _: Request) -> Response:
        await self._runs.leave(_VISITOR)
        return JSONResponse({})

    def _asked(self, answer: _Answer) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            began = time.perf_counter()
            try:
                asked = await request.json()
                async with self._runs.of(_VISITOR) as run:
                    told = await answer(run, asked)
            except (HudError, ValueError, KeyError, TypeError) as error:
                told = {"error": str(error) or type(error).__name__}
            return JSONResponse({**told, "seconds": round(time.perf_counter() - began, 3)})

        return endpoint

    async def _admit(self, request: Request, answer: RequestResponseEndpoint) -> Response:
        """Handle a request, and refuse one from any other page."""
        origin = request.headers.get("origin")
        ours = request.url.hostname in self._hosts and (
            origin is None or urlsplit(origin).netloc == request.headers.get("host")
        )
        if not ours:
            return JSONResponse({"error": "This is not for other sites."}, status_code=403)
        kind = request.headers.get("content-type", "")
        if request.method == "POST" and not kind.startswith("application/json"):
            return JSONResponse({"error": "Send application/json."}, status_code=415)
        return await answer(request)


async def _show(run: Connection, asked: dict[str, Any]) -> dict[str, Any]:
    del asked
    return {
        "tools": [spec.model_dump() for spec in await run.list_tools()],
        "tasks": await run.list_tasks(),
        "capabilities": [capability.to_manifest() for capability in run.capabilities],
    }


async def _call(run: Connection, asked: dict[str, Any]) -> dict[str, Any]:
    outcome = await run.call_tool(str(asked["name"]), asked["arguments"])
    return {
        "result": outcome.result.model_dump(by_alias=True, exclude_none=True),
        "observed": outcome.observed,
    }


async def _start(run: Connection, asked: dict[str, Any]) -> dict[str, Any]:
    frame = await run.start(str(asked["id"]), dict(asked["args"]))
    prompt = frame.prompt
    if isinstance(prompt, str):
        prompt = [Message(content=prompt)]
    return {"prompt": [message.model_dump(by_alias=True) for message in prompt]}


async def _grade(run: Connection, asked: dict[str, Any]) -> dict[str, Any]:
    return {"grade": await run.grade(str(asked["answer"]), None)}
