"""Routes of inference, in every dialect, each with and without the path prefixes of its clients.

GET  /models  /models/{model}     in the client's dialect
     the routes of every dialect (`hud.inference.dialects.dialect`)
     everything else: an error sentence in the client's dialect

They are plain ASGI: a provider's bytes are forwarded without the overhead of a framework.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from hud.errors import UsageError
from hud.inference.dialects.chat_completions.dialect import CHAT
from hud.inference.dialects.dialect import GROUP, Dialect, DialectRoute, RouteCall
from hud.inference.dialects.registry import dialects
from hud_platform.gateway.exchange import Exchange
from hud_platform.gateway.path_refusals import refuse_method

if TYPE_CHECKING:
    from hud_platform.gateway.gateway import Gateway


class GatewayRoute(APIRoute):
    """Route that is in the OpenAPI description, but served without the framework."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        methods = self.methods or set()
        if scope["method"] not in methods:
            await refuse_method(exchange, ", ".join(sorted(methods)))
            return
        described = self.endpoint
        assert isinstance(described, Described)
        gateway: Gateway = scope["app"].state.parts.gateway
        await gateway.handle(exchange, described.dialect, described.route)


class Described:
    """Endpoint of a described route: its signature has the path parameters and no body."""

    def __init__(self, dialect: Dialect, route: DialectRoute) -> None:
        self.dialect = dialect
        self.route = route
        self.__doc__ = route.description
        self.__name__ = route.name

    def __call__(self) -> dict[str, Any]:
        raise AssertionError("Served by the gateway.")


_MODELS = (
    DialectRoute(
        "list_models",
        ("/models", "/v1/models"),
        "Every model of the team, in the client's dialect.",
        RouteCall("models"),
        method="GET",
    ),
    DialectRoute(
        "one_model",
        ("/models/{model:path}", "/v1/models/{model:path}"),
        "One model.",
        RouteCall("model"),
        method="GET",
    ),
)


@functools.cache
def gateway_router() -> APIRouter:
    """Return the routes of every registered dialect, and the lists of models. Raises `UsageError` for two of one path."""
    router = APIRouter(tags=["inference"])
    for dialect in dialects().values():
        for route in dialect.routes:
            router.routes.extend(_gateway_routes(dialect, route))
    for route in _MODELS:
        router.routes.extend(_gateway_routes(CHAT, route))
    refuse_shared_paths(router)
    return router


def refuse_shared_paths(router: APIRouter, others: Iterable[APIRouter] = ()) -> None:
    """Raise `UsageError` for a path that two dialects serve, or a dialect and one of the other routers."""
    taken = {_place(route) for other in others for route in other.routes}
    for route in router.routes:
        if _place(route) in taken:
            method, path = _place(route)
            raise UsageError(
                f"{method} {path} is served twice: by a dialect ({GROUP}), and by another one or the platform. Uninstall one of "
                "the packages."
            )
        taken.add(_place(route))


def _place(route: BaseRoute) -> tuple[str, str]:
    """Return method and path of a route, without the names of its parameters."""
    methods = ", ".join(sorted(getattr(route, "methods", None) or ()))
    return methods, re.sub(r"\{[^}]*\}", "{}", str(getattr(route, "path", "")))


def _gateway_routes(dialect: Dialect, route: DialectRoute) -> list[GatewayRoute]:
    return [
        GatewayRoute(
            path,
            Described(dialect, route),
            methods=[route.method],
            name=route.name,
            operation_id=f"{route.name}_{path.strip('/').replace('/', '_').replace(':path', '')}",
            summary=route.name.replace("_", " "),
            description=route.description,
            include_in_schema=path == route.paths[-1],
            openapi_extra=_described(path, route.needed if route.method == "POST" else None),
            tags=["inference"],
        )
        for path in route.paths
    ]


def _described(path: str, needed: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the OpenAPI description of a path's parameters and of the body's required fields."""
    names = [part[1:-1].removesuffix(":path") for part in path.split("/") if part.startswith("{")]
    operation: dict[str, Any] = {
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    }
    if needed is not None:
        body = {"type": "object", "required": list(needed), "additionalProperties": True}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    return operation
