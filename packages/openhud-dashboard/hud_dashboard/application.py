"""Application of the pages: routes and error pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from hud.errors import HudError, PlatformError
from hud_dashboard import static_files
from hud_dashboard.events import Changes
from hud_dashboard.pages import ROUTERS
from hud_dashboard.rendering import error_page
from hud_platform.access.bodies import NO_TEXT
from hud_platform.access.middleware import retry_headers

if TYPE_CHECKING:
    from hud_platform.parts import Parts

SMALLEST_PACKED = 1_000
"""Minimum size in bytes of a compressed response. Event streams are not compressed: it would delay events."""


def create_pages(parts: Parts) -> FastAPI:
    """Return the application for requests that `middleware.Dashboard` serves."""
    pages = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    pages.state.parts = parts
    pages.state.changes = Changes(parts.stopping)
    for router in (static_files.router, *ROUTERS):
        # Not `include_router`: it rebuilds every route for each application, at its first request.
        pages.router.routes.extend(router.routes)
    pages.add_middleware(GZipMiddleware, minimum_size=SMALLEST_PACKED, compresslevel=5)
    for kind in (HudError, HTTPException, RequestValidationError, UnicodeEncodeError, Exception):
        pages.add_exception_handler(kind, _error_response)
    return pages


def _error_response(request: Request, error: Exception) -> Response:
    match error:
        case HudError():
            status = error.status if isinstance(error, PlatformError) else type(error).status
            shown = error_page(request, status, str(error))
            shown.headers.update(retry_headers(error))
            return shown
        case HTTPException(status_code=404):
            return error_page(request, 404, f"There is no page {request.url.path}.")
        case HTTPException():
            return error_page(request, error.status_code, str(error.detail))
        case RequestValidationError():
            problems = [f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors()]
            return error_page(request, 422, "; ".join(problems))
        case UnicodeEncodeError():
            return error_page(request, 400, NO_TEXT)
    kind = type(error).__name__
    return error_page(request, 500, f"This page failed ({kind}). See the server's log.")
