"""Port of pages: what a package serves to browsers beside the API, by an entry point of the group `hud.pages`.

Pages take what they use from `hud_platform.dependencies`, as the routes of `hud_platform.plugs.route_plugs` do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fastapi import APIRouter
from starlette.types import ASGIApp, Receive, Scope, Send

from hud.errors import UsageError
from hud.plugs import load_all
from hud_platform.access.page_paths import API_FAMILIES, PagePaths
from hud_platform.parts import Parts
from hud_platform.process.background import Service

GROUP = "hud.pages"


class PageMiddleware(Protocol):
    """ASGI application in front of the API: it serves requests for its pages and passes all others on."""

    def __init__(self, app: ASGIApp, parts: Parts) -> None: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@dataclass(frozen=True)
class PagesPlug:
    """Pages, and the state behind them."""

    middleware: type[PageMiddleware]
    paths: PagePaths
    """Paths that `middleware` serves. On a server with keys a browser that has signed in reaches them by its cookie, which other sites
    cannot send with a POST; other paths need a key in a header."""
    routers: tuple[APIRouter, ...] = ()
    """Pages at paths of the API, such as `/docs`."""
    service: Callable[[Parts], Service] | None = None
    """Makes the state of one platform, at its first use; pages take it by `dependencies.service_part(NAME)`."""


def page_plugs() -> dict[str, PagesPlug]:
    """Return the registered pages by the names of their entry points.

    Raises `UsageError` for a plug that cannot be imported, or whose paths are not its own.
    """
    plugs = load_all(GROUP, PagesPlug)
    owners = dict.fromkeys(API_FAMILIES, "the platform")
    for name, plug in plugs.items():
        for family in sorted(plug.paths.families):
            if family in owners:
                raise UsageError(
                    f"{GROUP} {name!r} has pages at /{family}, which {owners[family]} has; choose another path."
                )
            owners[family] = f"{GROUP} {name!r}"
        outside = [path for path in plug.paths.open if not plug.paths.hold(path)]
        if outside:
            raise UsageError(
                f"{GROUP} {name!r} opens {outside[0]}, which is no path of its pages; add it to their families."
            )
    return plugs
