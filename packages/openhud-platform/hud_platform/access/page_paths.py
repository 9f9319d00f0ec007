"""`PagePaths`: which paths are pages, as packages declare them. The rest of the platform's paths belong to its API."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.types import Scope

from hud.inference.dialects.registry import dialects
from hud_platform.access.request_headers import wants_page

API_FAMILIES = frozenset(
    {
        *("api", "auth", "docs", "downloads", "healthz", "metrics", "openapi.json", "readyz"),
        *("runtime", "sdk-events", "uploads", "v1", "v2", "v3"),
    }
)
"""First path segments of the API, without those of dialects: `/models` is a path of inference, and may be one of pages."""
SAFE = ("GET", "HEAD")
"""Methods that change nothing."""
SIGN_IN = "/signin"
"""Path of the sign-in page, if a package declares it among its open paths."""


@dataclass(frozen=True)
class PagePaths:
    """Paths of pages, and those of them that need no key."""

    families: frozenset[str] = frozenset()
    """First path segments; each page has a JSON twin with the suffix `.json`, a list one with `.csv`, too."""
    open: tuple[str, ...] = ()
    """Paths that need no key; one that ends in `/` with all paths below it."""

    @classmethod
    def merge(cls, paths: Iterable[PagePaths]) -> PagePaths:
        """Return the paths of several packages."""
        merged = tuple(paths)
        return cls(
            frozenset().union(*(part.families for part in merged)),
            tuple(path for part in merged for path in part.open),
        )

    def hold(self, path: str) -> bool:
        """Return True for a path whose first segment is one of pages."""
        return _family(path).removesuffix(".json").removesuffix(".csv") in self.families

    def is_page(self, scope: Scope) -> bool:
        """Return True for a request that pages serve.

        `GET /models` and `/models/{id}` are also paths of inference: there, requests that accept HTML or end in `.json` are for
        pages. `POST /models/{id}:METHOD` is inference. A browser at an address that neither pages nor the API have gets a page
        that says so.
        """
        if scope["type"] != "http" or not self.families:
            return False
        path: str = scope["path"]
        first = _family(path)
        if path.endswith("/telemetry-upload"):
            return False
        if not self.hold(path):
            return (
                scope["method"] in SAFE and first not in self.api_families() and wants_page(scope)
            )
        if first == "models" and scope["method"] in SAFE:
            return path.endswith(".json") or wants_page(scope)
        return first != "models" or ":" not in path

    def is_open(self, path: str) -> bool:
        """Return True for pages and files that need no key."""
        return any(
            path == place or (place[-1:] == "/" and path.startswith(place)) for place in self.open
        )

    def api_families(self) -> frozenset[str]:
        """Return the first path segments of the API that are none of pages."""
        return (API_FAMILIES | _dialect_families()) - self.families


def _family(path: str) -> str:
    return path[1:].partition("/")[0]


@functools.cache
def _dialect_families() -> frozenset[str]:
    paths = [
        path for dialect in dialects().values() for route in dialect.routes for path in route.paths
    ]
    return frozenset(_family(path) for path in paths)
