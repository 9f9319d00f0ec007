"""Templates and rendering of pages."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hud import __version__, exact_json
from hud_dashboard.static_files import address
from hud_dashboard.value_formats import FILTERS
from hud_platform.access import Scope, caller
from hud_platform.access.request_headers import wants_page

TITLES = {
    400: "That cannot be done",
    403: "Not allowed",
    404: "Not found",
    422: "Invalid request",
    500: "Something broke",
}

templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
templates.filters.update(FILTERS, zip=zip)
templates.globals.update(static=address, version=__version__)


def page(request: Request, template: str, data: dict[str, Any], status: int = 200) -> Response:
    """Respond with a page or, at an address with the suffix `.json`, with its data.
    `data` is plain data, returned unchanged as the JSON twin. Templates also have `here` (path and query of this
    page), `link` (the page with changed parameters), `may` (whether the caller has a scope) and `now`.
    """
    if request.url.path.endswith(".json"):
        return Response(exact_json.dumps(data, default=str), status, media_type="application/json")
    return HTMLResponse(render(request, template, **data), status)


def render(request: Request, template: str, **values: Any) -> str:
    """Render a template."""
    who = caller(request)

    def may(scope: Scope) -> bool:
        return who.may(scope)

    def link(**changed: Any) -> str:
        """Return the address of this page with changed parameters; None removes one."""
        unchanged = [pair for pair in request.query_params.multi_items() if pair[0] not in changed]
        left = [pair for pair in (*unchanged, *changed.items()) if pair[1] not in (None, "")]
        return request.url.path + (f"?{urlencode(left)}" if left else "")

    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    config = request.app.state.parts.config
    return templates.get_template(template).render(
        **values,
        here=here,
        link=link,
        may=may,
        query=request.query_params,
        path=request.url.path,
        signed_in=config.keys and hasattr(request.state, "identity"),
        now=datetime.now(UTC),
    )


def refusal_page(status: int, sentence: str, advice: Markup | None = None) -> HTMLResponse:
    """Respond with a page outside of the dashboard's frame, for a browser that may not see it."""
    shown = templates.get_template("unopened.html").render(
        sentence=sentence, title=TITLES[status], advice=advice
    )
    return HTMLResponse(shown, status, {"cache-control": "no-store"})


def error_page(request: Request, status: int, sentence: str) -> Response:
    """Respond with an error sentence: as a page for browsers, as JSON for programs."""
    if request.url.path.endswith(".json") or not wants_page(dict(request.scope)):
        return Response(
            exact_json.dumps({"detail": sentence}), status, media_type="application/json"
        )
    title = TITLES.get(status, "This did not work")
    return HTMLResponse(
        render(request, "error.html", status=status, title=title, sentence=sentence), status
    )
