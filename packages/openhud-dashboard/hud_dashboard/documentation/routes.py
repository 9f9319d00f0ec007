"""Public documentation of a server: the product's, as a site and over MCP for coding agents, and the server's routes.

GET /docs      GET /docs/{path}      GET /docs/routes      POST /docs/mcp
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from hud.errors import NotFoundError, PlatformError
from hud_dashboard.documentation.site import site_files

if TYPE_CHECKING:
    from hud_dashboard.documentation.served import DocumentationServer

router = APIRouter()


class _Mounted:
    """ASGI application that creates the MCP server at the first request: the official package is slow to load."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = await asyncio.to_thread(_server)
        await server(scope, receive, send)


@functools.cache
def _server() -> DocumentationServer:
    try:
        from hud_dashboard.documentation.served import DocumentationServer
    except ModuleNotFoundError as error:
        raise PlatformError(
            f"This server lacks the package {error.name!r}: pip install 'openhud[platform]'.", 501
        ) from None
    from hud_dashboard.documentation import Library, read_pages

    return DocumentationServer(Library(read_pages()))


@router.get("/docs/routes", include_in_schema=False)
def reference(request: Request) -> HTMLResponse:
    """Routes of this server, from its OpenAPI document. Static: a page with scripts of other sites could use any key."""
    from hud_dashboard.rendering import templates  # Loaded with the first page.

    described = request.app.openapi()
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            line = (method.upper(), path, route.get("description", ""))
            groups.setdefault((route.get("tags") or ["other"])[0], []).append(line)
    shown = {"groups": groups, "version": described["info"]["version"]}
    return HTMLResponse(templates.get_template("reference.html").render(shown))


@router.get("/docs", include_in_schema=False)
def front() -> Response:
    """The site's address: its pages link to each other by relative paths, from this one with a slash at its end."""
    return RedirectResponse("/docs/")


# Plain ASGI: the official package reads requests and writes responses itself. Not part of the REST interface.
router.add_route("/docs/mcp", _Mounted(), methods=["POST"], include_in_schema=False)  # type: ignore[arg-type]


@router.get("/docs/{path:path}", include_in_schema=False)
async def page(request: Request, path: str) -> Response:
    """A page or a file of the site. Without a site, a page that says how to build it; with 404 below the root."""
    if path == "mcp":
        raise PlatformError("/docs/mcp takes POST, not GET.", 405)
    files = _site()
    if files is None:
        from hud_dashboard.rendering import templates

        unbuilt = templates.get_template("documentation.html").render()
        return HTMLResponse(unbuilt, status_code=404 if path else 200)
    try:
        response = await files.get_response(path or ".", request.scope)
    except HTTPException:  # A path of no file, or one that leaves the folder.
        raise NotFoundError(f"The documentation has no page {path!r}. See /docs/.") from None
    if isinstance(
        response, RedirectResponse
    ):  # From a folder to its page; by path, since proxies change the host.
        return RedirectResponse(f"{request.url.path}/")
    response.headers["cache-control"] = "no-cache"
    return response


@functools.cache
def _site() -> StaticFiles | None:
    return site_files()
