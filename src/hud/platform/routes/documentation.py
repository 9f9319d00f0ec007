"""Public documentation of a server: its routes as a page, and the product's documentation over MCP, for coding agents.

GET /docs      POST /docs/mcp
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

from hud.errors import PlatformError

if TYPE_CHECKING:
    from hud.platform.documentation.served import DocumentationServer

router = APIRouter()


class _Mounted:
    """ASGI application that creates the MCP server at the first request: the official package is slow to load."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = await asyncio.to_thread(_server)
        await server(scope, receive, send)


@functools.cache
def _server() -> DocumentationServer:
    try:
        from hud.platform.documentation.served import DocumentationServer
    except ModuleNotFoundError as error:
        raise PlatformError(
            f"This server lacks the package {error.name!r}: pip install 'openhud[platform]'.", 501
        ) from None
    from hud.platform.documentation import Library, read_pages

    return DocumentationServer(Library(read_pages()))


@router.get("/docs", include_in_schema=False)
def reference(request: Request) -> HTMLResponse:
    """Routes of this server, from its OpenAPI document. Static: a page with scripts of other sites could use any key."""
    from hud.platform.dashboard.rendering import templates  # Loaded with the first page.

    described = request.app.openapi()
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            line = (method.upper(), path, route.get("description", ""))
            groups.setdefault((route.get("tags") or ["other"])[0], []).append(line)
    shown = {"groups": groups, "version": described["info"]["version"]}
    return HTMLResponse(templates.get_template("reference.html").render(shown))


# Plain ASGI: the official package reads requests and writes responses itself. Not part of the REST interface.
router.add_route("/docs/mcp", _Mounted(), methods=["POST"], include_in_schema=False)  # type: ignore[arg-type]
