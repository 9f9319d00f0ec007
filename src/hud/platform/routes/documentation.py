"""Documentation over MCP, for coding agents; public, like the page /docs.

POST /docs/mcp
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

from fastapi import APIRouter
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


# Plain ASGI: the official package reads requests and writes responses itself. Not part of the REST interface.
router.add_route("/docs/mcp", _Mounted(), methods=["POST"], include_in_schema=False)  # type: ignore[arg-type]
