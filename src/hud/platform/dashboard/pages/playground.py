"""The playground: a person talks to a model or a pinned checkpoint, which may use an environment's tools.

Turns go through the gateway's own code, streamed, as any client's do. The conversation is the page's; nothing of it is
kept here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import orjson
from fastapi import Depends, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict
from starlette.types import Receive, Scope, Send

from hud.errors import NotFoundError
from hud.platform.access import caller, needs
from hud.platform.dashboard.page import Pages
from hud.platform.dashboard.rendering import page
from hud.platform.environments import Environments
from hud.platform.gateway.exchange import Exchange
from hud.platform.gateway.providers import builtin_records

if TYPE_CHECKING:
    from hud.platform.platform import Platform

router = Pages()
MOST_ENVIRONMENTS = 200
MOST_CHECKPOINTS = 200
LONGEST_RESULT = 20_000
"""Characters of a tool's answer that are given to the model and shown."""
_RUN = [Depends(needs("run"))]
_Text = Annotated[str, Query(max_length=200)]


class WorldRequest(BaseModel):
    """Open an environment: one that is deployed or, on one's own machine, one of a file."""

    model_config = ConfigDict(extra="forbid")

    environment: str = ""
    path: str = ""


class ToolCall(BaseModel):
    """Call a tool of an open environment."""

    model_config = ConfigDict(extra="forbid")

    name: str
    arguments: dict[str, Any] | str = ""


@router.page("/playground")
def playground(
    request: Request, model: _Text = "", checkpoint: _Text = "", environment: _Text = ""
) -> Response:
    """The playground, with a model, a checkpoint and an environment chosen."""
    platform, who = _platform(request), caller(request)
    who.require("run")
    registry = platform.registry_of(who.team_id)
    own = registry.models()
    slugs = [one.slug for one in own]
    others = [one.slug for one in builtin_records() if one.slug not in slugs]
    chosen = next((one for one in own if one.slug == model), None)
    checkpoints: list[dict[str, str]] = []
    if chosen is not None and chosen.config.provider is None:
        nodes = [node for node in registry.tree.nodes(chosen) if node.folder is not None]
        checkpoints = [
            {"value": node.id, "label": node.name} for node in reversed(nodes[-MOST_CHECKPOINTS:])
        ]
        checkpoints.append({"value": "base", "label": "the beginning"})
    found, _ = Environments(platform.store, who.team_id).page(None, MOST_ENVIRONMENTS, 0)
    data = {
        "models": slugs,
        "others": others,
        "model": model if model in (*slugs, *others) else "",
        "checkpoints": checkpoints,
        "checkpoint": checkpoint,
        "environments": [
            {"name": one["name"], "ready": one["latest_build"] is not None} for one in found
        ],
        "environment": environment,
        "own_machine": not platform.config.keys,
    }
    return page(request, "playground.html", data)


@router.post("/playground/turn", dependencies=_RUN)
async def turn(request: Request) -> Response:
    """Ask a model for its next turn: a chat completion, whose stream the gateway writes."""
    platform = _platform(request)
    platform.limits.admit(caller(request))
    return _Completion(platform)


@router.post("/playground/worlds", dependencies=_RUN)
async def open_world(request: Request, body: WorldRequest) -> Response:
    """Bring up an environment; returns its tools as chat completions declare them."""
    world = await _platform(request).worlds.bring_up(caller(request), body.environment, body.path)
    tools = [{"type": "function", "function": tool.function()} for tool in world.tools]
    return _json({"id": world.id, "name": world.name, "tools": tools})


@router.post("/playground/worlds/{world_id}/call", dependencies=_RUN)
async def call(request: Request, world_id: str, body: ToolCall) -> Response:
    """Call a tool; its answer as text, and how many pictures it holds."""
    worlds = _platform(request).worlds
    world = worlds.find(caller(request), world_id)
    result = await worlds.call(world, body.name, body.arguments)
    text = result.text
    if len(text) > LONGEST_RESULT:
        text = f"{text[:LONGEST_RESULT]}\n… {len(text) - LONGEST_RESULT:,} more characters"
    pictures = sum(block.type == "image" for block in result.content)
    return _json({"text": text, "is_error": result.is_error, "pictures": pictures})


@router.post("/playground/worlds/{world_id}/close", dependencies=_RUN)
async def close(request: Request, world_id: str) -> Response:
    """Close an environment; one that is closed already is no error."""
    worlds = _platform(request).worlds
    try:
        world = worlds.find(caller(request), world_id)
    except NotFoundError:
        return _json({"closed": False})
    await worlds.end(world)
    return _json({"closed": True})


class _Completion(Response):
    """An answer that the gateway gives itself, byte by byte."""

    def __init__(self, platform: Platform) -> None:
        super().__init__()
        self._gateway = platform.gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        await self._gateway.serve(exchange, self._gateway.dialects.chat, "chat/completions")


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def _platform(request: Request) -> Platform:
    platform: Platform = request.app.state.platform
    return platform
