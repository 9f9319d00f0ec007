"""Paths of the dashboard. The rest of the platform's paths belong to its API."""

from __future__ import annotations

import functools

from starlette.types import Scope

from hud.inference.dialects.registry import dialects

FAMILIES = frozenset(
    {
        "",
        "jobs",
        "trace",
        "traces",
        "models",
        "train",
        "playground",
        "search",
        "shared",
        "views",
        "review",
        "labels",
        "tasksets",
        "environments",
        "fleet",
        "people",
        "settings",
        "baseline",
        "events",
        "static",
        "signin",
        "signout",
        "favicon.ico",
    }
)
"""First path segments of pages; each page has a JSON twin with the suffix `.json`, a list one with `.csv`, too."""
_API_FAMILIES = frozenset(
    {
        *(
            "api",
            "auth",
            "docs",
            "downloads",
            "healthz",
            "metrics",
            "openapi.json",
            "readyz",
            "runtime",
        ),
        *("sdk-events", "uploads", "v1", "v2", "v3"),
    }
)
SAFE = ("GET", "HEAD")
"""Methods that change nothing."""
OPEN = ("/signin", "/favicon.ico")
"""Pages that need no key, like the static files."""


def is_page(scope: Scope) -> bool:
    """Return True for a request that the dashboard serves.
    `GET /models` and `/models/{id}` are also paths of inference: there, requests that accept HTML or end in `.json` are for
    the dashboard. `POST /models/{id}:METHOD` is inference. A browser at an address that neither knows gets the dashboard's
    page that says so.
    """
    if scope["type"] != "http":
        return False
    path: str = scope["path"]
    first = path[1:].partition("/")[0]
    if path.endswith("/telemetry-upload"):
        return False
    if first.removesuffix(".json").removesuffix(".csv") not in FAMILIES:
        return scope["method"] in SAFE and first not in api_families() and wants_page(scope)
    if first == "models" and scope["method"] in SAFE:
        return path.endswith(".json") or wants_page(scope)
    return first != "models" or ":" not in path


@functools.cache
def api_families() -> frozenset[str]:
    """Return the first path segments of the API that are none of pages; a test compares them with its routes."""
    paths = [
        path for dialect in dialects().values() for route in dialect.routes for path in route.paths
    ]
    return (_API_FAMILIES | {path[1:].partition("/")[0] for path in paths}) - FAMILIES


def is_open_page(path: str) -> bool:
    """Return True for pages and files that need no key."""
    return path in OPEN or path.startswith(("/static/", "/shared/"))


def wants_page(scope: Scope) -> bool:
    """Return True for a request of a browser or of htmx, which expects HTML."""
    return "text/html" in header(scope, b"accept") or bool(header(scope, b"hx-request"))


def header(scope: Scope, name: bytes) -> str:
    """Return a header of a request, or an empty string."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def cookie(scope: Scope, name: str) -> str:
    """Return a cookie of a request, or an empty string."""
    for pair in header(scope, b"cookie").split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name:
            return value
    return ""
