"""`Pages`: routes of pages, each with its JSON twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import RedirectResponse, Response
from starlette.requests import HTTPConnection

from hud.platform.access import Scope, caller, needs
from hud.platform.parts import Parts
from hud.platform.training.launch_request import Launching

Route = Callable[..., Any]


async def _launching(connection: HTTPConnection) -> Launching:
    parts: Parts = connection.app.state.parts
    who = caller(connection)
    return Launching(
        parts.launches,
        parts.registry.of(who.team_id),
        lambda: parts.engine,
        who,
        own_machine=not parts.config.keys,
    )


LaunchingPart = Annotated[Launching, Depends(_launching)]


class Pages(APIRouter):
    """The routes of one family of pages. All need the scope `read`, which every key has."""

    def __init__(self) -> None:
        super().__init__(dependencies=[Depends(needs("read"))], default_response_class=Response)

    def page(self, path: str) -> Callable[[Route], Route]:
        """Serve `path`, and its twin at `path.json`, with a function that returns `rendering.page(...)`."""

        def serve(function: Route) -> Route:
            # The twin first: an id in the path would take ".json" for its end.
            if path != "/":
                self.add_api_route(f"{path}.json", function, methods=["GET"])
            self.add_api_route(path, function, methods=["GET", "HEAD"])
            return function

        return serve

    def action(self, path: str, scope: Scope) -> Callable[[Route], Route]:
        """Serve a POST of a form, for who holds `scope`; the function does it and returns `see(...)`."""
        return self.post(path, dependencies=[Depends(needs(scope))])


def see(path: str) -> RedirectResponse:
    """Send the browser on to a page after an action, so that reloading it does not repeat the action."""
    return RedirectResponse(path, status_code=303)
