"""ASGI application of the platform, for a server or embedded in a process."""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from hud import __version__, exact_json
from hud.durable_files import closed_file
from hud.errors import HudError, PlatformError, StoreError, StoreFullError
from hud_platform.access.bodies import NO_TEXT, Bodies
from hud_platform.access.middleware import Door, retry_headers
from hud_platform.access.page_paths import PagePaths
from hud_platform.access.pass_door import PassDoor
from hud_platform.access.response_headers import ResponseHeaders
from hud_platform.gateway.exchange import Exchange
from hud_platform.gateway.path_refusals import refuse_path
from hud_platform.parts import Parts
from hud_platform.plugs.page_plugs import page_plugs
from hud_platform.plugs.route_plugs import refuse_overlaps, route_plugs
from hud_platform.process.config import PlatformConfig
from hud_platform.process.metrics import Measured
from hud_platform.routes import ROUTERS, first_routers
from hud_platform.store.store import NO_ROOM

CLOSED = "The server may not read or write one of its files; its log names the file."
TOO_DEEP = "A value of this request is nested too deep."

_log = logging.getLogger("hud.platform")


def create_app(config: PlatformConfig) -> FastAPI:
    """Return the application of a platform, with the routes and pages that packages add to it.

    Raises `StoreError` if its store cannot be opened, and `UsageError` for foreign routes or pages that cannot join.
    """
    joined, pages = route_plugs(), page_plugs()
    paged = [router for plug in pages.values() for router in plug.routers]
    first = first_routers()
    refuse_overlaps(joined, (*first, *ROUTERS, *paged))
    services = {
        **{name: plug.service for name, plug in joined.items()},
        **{name: plug.service for name, plug in pages.items()},
    }
    makers = {name: make for name, make in services.items() if make is not None}
    page_paths = PagePaths.merge(plug.paths for plug in pages.values())
    parts = Parts(config, makers, page_paths)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with parts.running():
            yield

    app = FastAPI(
        title="OpenHUD", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.state.parts = parts
    foreign = [router for plug in joined.values() for router in plug.routers]
    for router in (*first, *foreign, *ROUTERS, *paged):
        # Not `include_router`: it rebuilds every route for each application, which takes 0.1 s.
        app.router.routes.extend(router.routes)
    for plug in pages.values():
        app.add_middleware(plug.middleware, parts=parts)
    app.add_middleware(Bodies, keys=config.keys)
    if config.keys:
        app.add_middleware(
            Door,
            keys=parts.keys,
            passes=parts.passes,
            limits=parts.limits,
            sessions=parts.web_sessions,
            pages=page_paths,
            key_prefixes=[plug.key_prefix for plug in joined.values() if plug.key_prefix],
        )
        # Outside of the door: refused requests are measured as well.
        app.add_middleware(Measured, metrics=parts.metrics)
    else:
        app.add_middleware(PassDoor, passes=parts.passes)
    app.add_middleware(ResponseHeaders)  # Outermost: refusals have these headers, too.
    expected = (HudError, RequestValidationError, UnicodeEncodeError)
    for kind in (
        *expected,
        PermissionError,
        RecursionError,
        exact_json.NestedTooDeepError,
        Exception,
    ):
        app.add_exception_handler(kind, _respond_with_error)
    # The router's fallback for paths without a route.
    app.router.default = _absent
    return app


async def _absent(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond to a path without a route."""
    if scope["type"] == "websocket":
        await WebSocketClose()(scope, receive, send)
    else:
        await refuse_path(Exchange(scope, receive, send))


async def _respond_with_error(request: Request, error: Exception) -> Response:
    """Respond with the sentence of an error. For an unexpected exception only with its type: messages may contain secrets."""
    match error:
        case StoreFullError() if request.app.state.parts.config.keys:
            # The server's paths are only logged, for the operator.
            _log.error("%s", error)
            return JSONResponse({"detail": NO_ROOM}, status_code=StoreFullError.status)
        case HudError():
            status = error.status if isinstance(error, PlatformError) else type(error).status
            kind = StoreError if isinstance(error, StoreError) else type(error)
            headers = {"x-hud-error": kind.__name__, **retry_headers(error)}
            return JSONResponse({"detail": str(error)}, status_code=status, headers=headers)
        case RequestValidationError():
            problems = [
                f"{'.'.join(str(part) for part in problem['loc'][1:]) or 'body'}: {problem['msg']}"
                for problem in error.errors()
            ]
            return JSONResponse({"detail": "; ".join(problems)}, status_code=422)
        case UnicodeEncodeError():  # From a form: JSON with such text is refused earlier.
            return JSONResponse({"detail": NO_TEXT}, status_code=400)
        case RecursionError() | exact_json.NestedTooDeepError():
            return JSONResponse({"detail": TOO_DEEP}, status_code=400)
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return JSONResponse({"detail": NO_ROOM}, status_code=StoreFullError.status)
        case OSError() if (closed := closed_file(error)) is not None:
            _log.error("%s", closed)
            hidden = request.app.state.parts.config.keys
            return JSONResponse(
                {"detail": CLOSED if hidden else str(closed)},
                status_code=StoreError.status,
                headers={"x-hud-error": StoreError.__name__},
            )
    sentence = f"{request.method} {request.url.path} failed in the server ({type(error).__name__})."
    return JSONResponse({"detail": f"{sentence} See the server's log."}, status_code=500)
