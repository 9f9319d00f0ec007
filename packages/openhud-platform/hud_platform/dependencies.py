"""Dependencies of routes: each route declares the parts that it uses, and FastAPI passes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import BaseModel, ConfigDict
from starlette.requests import HTTPConnection

from hud_platform.access.audit_log import AuditLog
from hud_platform.access.identity import SCOPES, Identity, caller, needs
from hud_platform.access.keys import Keys
from hud_platform.access.limits import Limits
from hud_platform.access.secrets import Secrets
from hud_platform.access.signed_links import SignedLinks
from hud_platform.environments.runtime_sessions import RuntimeSessions
from hud_platform.gateway.ledger import Ledger
from hud_platform.models.registry import Registry
from hud_platform.parts import Parts
from hud_platform.process.config import PlatformConfig
from hud_platform.serving.token_engine import TokenEngine
from hud_platform.store import Store
from hud_platform.training.optimizer_steps import StepsInFlight


class StrictBody(BaseModel):
    """Body of a request; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")


def part(choose: Callable[[Parts], object]) -> Any:
    """Return a dependency on a part of the platform."""

    # Asynchronous, like all dependencies: FastAPI would run a plain function in a thread.
    async def chosen_part(connection: HTTPConnection) -> object:
        return choose(connection.app.state.parts)

    return Depends(chosen_part)


def service_part(name: str) -> Any:
    """Return a dependency on the service behind the routes of a plug (`hud_platform.plugs.route_plugs`), by its entry point's name."""
    return part(lambda parts: parts.service(name))


def service_of(connection: HTTPConnection, name: str) -> Any:
    """Return the service of `service_part(name)`, outside of a route."""
    return connection.app.state.parts.service(name)


def of_team(make: Callable[[Store, str], object]) -> Any:
    """Return a dependency on `make(store, team)`: a part of the store limited to the caller's team."""

    async def made(connection: HTTPConnection) -> object:
        return make(connection.app.state.parts.store, caller(connection).team_id)

    return Depends(made)


async def _caller(connection: HTTPConnection) -> Identity:
    return caller(connection)


async def _team(connection: HTTPConnection) -> str:
    return caller(connection).team_id


async def _audit(connection: HTTPConnection) -> AuditLog:
    return AuditLog(connection.app.state.parts.store, caller(connection))


async def _models(connection: HTTPConnection) -> Registry:
    registry: Registry = connection.app.state.parts.registry
    return registry.of(caller(connection).team_id)


async def _secrets(connection: HTTPConnection) -> Secrets:
    return Secrets(connection.app.state.parts.config.home, caller(connection).team_id)


READ, RUN, TRAIN, ADMIN = ([Depends(needs(scope))] for scope in SCOPES)
"""`dependencies` of routes that need a scope."""
Limit = Annotated[int, Query(ge=1, le=1000)]
Offset = Annotated[int, Query(ge=0, le=2**31 - 1)]
Who = Annotated[Identity, Depends(_caller)]
Team = Annotated[str, Depends(_team)]
"""Id of the caller's team."""
Audit = Annotated[AuditLog, Depends(_audit)]
Models = Annotated[Registry, Depends(_models)]
"""Registry limited to the models of the caller's team."""
TeamSecrets = Annotated[Secrets, Depends(_secrets)]
ConfigPart = Annotated[PlatformConfig, part(lambda parts: parts.config)]
StorePart = Annotated[Store, part(lambda parts: parts.store)]
KeysPart = Annotated[Keys, part(lambda parts: parts.keys)]
EnginePart = Annotated[TokenEngine, part(lambda parts: parts.engine)]
LimitsPart = Annotated[Limits, part(lambda parts: parts.limits)]
LedgerPart = Annotated[Ledger, part(lambda parts: parts.gateway.ledger)]
Steps = Annotated[StepsInFlight, part(lambda parts: parts.steps)]
LinksPart = Annotated[SignedLinks, part(lambda parts: parts.links)]
StoppingPart = Annotated[asyncio.Event, part(lambda parts: parts.stopping)]
RuntimeSessionsPart = Annotated[RuntimeSessions, part(lambda parts: parts.runtime_sessions)]
