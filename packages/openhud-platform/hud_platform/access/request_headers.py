"""Headers of requests as middleware reads them, before a route is chosen."""

from __future__ import annotations

from starlette.types import Scope


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
