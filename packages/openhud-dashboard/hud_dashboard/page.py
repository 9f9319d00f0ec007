"""`Pages`: routes of pages, each with its JSON twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import RedirectResponse, Response

from hud_dashboard.csv_twin import csv_twin
from hud_dashboard.events import changes
from hud_dashboard.launching.launch_request import Launching
from hud_dashboard.rendering import page
from hud_dashboard.state import StatePart
from hud_platform.access import Scope, caller, needs
from hud_platform.dependencies import StorePart, Team
from hud_platform.parts import Parts
from hud_platform.tasksets.rows import TasksetRows

Route = Callable[..., Any]
Data = dict[str, Any]
Offset = Annotated[int, Query(ge=0, le=2**31 - 1)]
"""Index of a page's first row."""


async def _launching(request: Request, state: StatePart) -> Launching:
    parts: Parts = request.app.state.parts
    who = caller(request)
    return Launching(
        state.launches,
        parts.registry.of(who.team_id),
        lambda: parts.engine,
        who,
        own_machine=not parts.config.keys,
    )


def _rows(store: StorePart, team: Team, taskset_id: str) -> TasksetRows:
    return TasksetRows(store, team, taskset_id)


async def _sent(request: Request) -> dict[str, str]:
    form = await request.form()
    return {name: str(form.get(name) or "") for name in form}


LaunchingPart = Annotated[Launching, Depends(_launching)]
Rows = Annotated[TasksetRows, Depends(_rows)]
"""Rows of the taskset in the path."""
Sent = Annotated[dict[str, str], Depends(_sent)]
"""Fields of the submitted form, as text."""


class Pages(APIRouter):
    """Routes of one family of pages. All need the scope `read`, which every key has."""

    def __init__(self) -> None:
        super().__init__(dependencies=[Depends(needs("read"))], default_response_class=Response)

    def page(self, path: str, template: str, csv: bool = False) -> Callable[[Route], Route]:
        """Serve `path` with a template over the function's data, and the data itself at `path.json`.

        `csv`: the page is a list, whose rows are at `path.csv`.
        """

        def serve(function: Route) -> Route:
            # The twin first: a path parameter would match ".json" as part of an id.
            drawn = _drawn(function, template, 200)
            self.add_api_route(f"{path}.json", drawn, methods=["GET"])
            if csv:
                twin = csv_twin(function, path.strip("/"))
                self.add_api_route(f"{path}.csv", twin, methods=["GET"])
            self.add_api_route(path, drawn, methods=["GET", "HEAD"])
            return function

        return serve

    def action(
        self, path: str, scope: Scope, template: str | None = None
    ) -> Callable[[Route], Route]:
        """Serve a POST of a form for callers with `scope`; the function executes it and returns `see(...)`.
        If it returns data instead, the form's `template` is rendered with the data and status 422.
        """

        def serve(function: Route) -> Route:
            answer = function if template is None else _drawn(function, template, 422)
            self.add_api_route(path, answer, methods=["POST"], dependencies=[Depends(needs(scope))])
            return function

        return serve

    def events(self, path: str) -> Callable[[Route], Route]:
        """Serve a stream of events to a live page; the function returns a `Following`."""

        def serve(function: Route) -> Route:
            following = Depends(function)

            def followed(
                request: Request, key_and_read: Any = following, seen: str = ""
            ) -> Response:
                key, read = key_and_read
                return changes(request, key, read, seen)

            self.add_api_route(path, followed, methods=["GET"])
            return function

        return serve


def _drawn(function: Route, template: str, status: int) -> Route:
    """Return a route that renders the data of `function`, its dependency; a `Response` is returned unchanged."""
    data = Depends(function)

    def drawn(request: Request, context: Any = data) -> Response:
        return (
            context if isinstance(context, Response) else page(request, template, context, status)
        )

    return drawn


def paged(total: int, limit: int, offset: int) -> dict[str, int]:
    """Return the fields for the macro `pagination`."""
    return {"total": total, "limit": limit, "offset": offset}


def see(path: str) -> RedirectResponse:
    """Redirect the browser to a page after an action, so that a reload does not repeat the action."""
    return RedirectResponse(path, status_code=303)
