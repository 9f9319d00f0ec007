"""Port of foreign routes: routers that a package adds to the platform, by an entry point of the group `hud.routes`.

A router's routes take what they use from `hud_platform.dependencies`: scopes, the caller, its models, the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.routing import BaseRoute

from hud.errors import UsageError
from hud.plugs import load_all
from hud_platform.parts import Parts
from hud_platform.process.background import Service

GROUP = "hud.routes"


@dataclass(frozen=True)
class RoutePlug:
    """Routes below one path, and the state behind them."""

    prefix: str
    """Path at or below which all of them are, such as `/chess/v1`: no other route of the platform is."""
    routers: tuple[APIRouter, ...]
    service: Callable[[Parts], Service] | None = None
    """Makes the state of one platform, at its first use; its routes take it by `dependencies.service_part(NAME)`."""
    key_prefix: str = ""
    """Characters that clients of this protocol put before a key in `x-api-key`."""


def route_plugs() -> dict[str, RoutePlug]:
    """Return the registered routes by the names of their entry points.

    Raises `UsageError` for a plug that cannot be imported, or with a route outside of its prefix.
    """
    loaded = load_all(GROUP, RoutePlug)
    for name, plug in loaded.items():
        outside = [path for path in _paths(plug.routers) if not _is_below(path, plug.prefix)]
        if outside:
            raise UsageError(
                f"{GROUP} {name!r} has the route {outside[0]}, which is not below its prefix {plug.prefix!r}; give every "
                "route of it a path below."
            )
    return loaded


def refuse_overlaps(joined: dict[str, RoutePlug], own: Iterable[APIRouter]) -> None:
    """Raise `UsageError` for a plug whose prefix holds routes of the platform, or of another plug."""
    owners = {"the platform": tuple(own)}
    for name, plug in joined.items():
        for owner, routers in owners.items():
            taken = next((path for path in _paths(routers) if _is_below(path, plug.prefix)), None)
            if taken is not None:
                raise UsageError(
                    f"{GROUP} {name!r} has the prefix {plug.prefix!r}, below which {owner} has {taken}; choose another prefix."
                )
        owners[f"{GROUP} {name!r}"] = plug.routers


def _paths(routers: Iterable[APIRouter]) -> Iterable[str]:
    return (_path(route) for router in routers for route in router.routes)


def _path(route: BaseRoute) -> str:
    return str(getattr(route, "path", ""))


def _is_below(path: str, prefix: str) -> bool:
    return prefix.startswith("/") and f"{path}/".startswith(f"{prefix.rstrip('/')}/")
