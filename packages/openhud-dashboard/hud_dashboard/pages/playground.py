"""Playground: chat with a model or a pinned checkpoint, which may use an environment's tools.
Turns go through the gateway's code, streamed, like those of any client. The conversation is held by the page, not
by the server.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Query
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from hud import exact_json
from hud.errors import HudError, NotFoundError, UsageError
from hud.eval.tasksets.synchronization import task_of
from hud.inference.dialects.chat_completions.dialect import CHAT, CHAT_CALL
from hud.trace import Message
from hud_dashboard.page import Data, Pages
from hud_dashboard.pages.evaluation import checkpoint_options
from hud_dashboard.pages.tasksets import row_label
from hud_dashboard.playground_conversations import RatedConversation, record_rating
from hud_dashboard.playground_environments import Worlds
from hud_dashboard.state import state_part
from hud_dashboard.trace.grades import grade_of
from hud_platform.access import needs
from hud_platform.access.limits import Limits
from hud_platform.dependencies import ConfigPart, Models, StorePart, TeamSecrets, Who, part
from hud_platform.environments.registry import Environments
from hud_platform.gateway.exchange import Exchange
from hud_platform.models.provider_models import builtin_records
from hud_platform.routes.labels import Rater
from hud_platform.tasksets.playable import Playable
from hud_platform.tasksets.rows import TasksetRows

if TYPE_CHECKING:
    from hud_platform.gateway.gateway import Gateway
    from hud_platform.store import Store

router = Pages()
MOST_ENVIRONMENTS = 200
MOST_TASKS = 1_000
"""Maximum number of a taskset's tasks in the selection."""
LONGEST_RESULT = 20_000
"""Maximum length of a tool's result for the model and the page."""
_RUN = [Depends(needs("run"))]
# Any: `hud view` serves this page also without the gateway's packages.
GatewayPart = Annotated[Any, part(lambda parts: parts.gateway)]
WorldsPart = Annotated[Worlds, state_part(lambda state: state.worlds)]
_Text = Annotated[str, Query(max_length=200)]


class WorldRequest(BaseModel, extra="forbid"):
    """Request to open an environment: a deployed one or, on the user's own machine, one from a file.
    With `taskset` and `task`: that task's environment, in which the task is started.
    """

    environment: str = ""
    path: str = ""
    taskset: str = ""
    task: str = ""


class TaskRequest(BaseModel, extra="forbid"):
    """Request to start a task in an open environment."""

    template: str
    arguments: dict[str, Any] = {}


class Answer(BaseModel, extra="forbid"):
    """Answer to be graded."""

    answer: str


class ToolCall(BaseModel, extra="forbid"):
    """Request to call a tool of an open environment."""

    name: str
    arguments: dict[str, Any] | str = ""


@router.page("/playground", "playground.html")
def playground(
    registry: Models,
    secrets: TeamSecrets,
    store: StorePart,
    config: ConfigPart,
    who: Who,
    model: _Text = "",
    checkpoint: _Text = "",
    environment: _Text = "",
    taskset: _Text = "",
    task: Annotated[str, Query(max_length=1_000)] = "",
) -> Data:
    """The playground, with model, checkpoint, environment and task preselected from the query."""
    who.require("run")
    own = registry.models()
    slugs = [record.slug for record in own]
    builtin = builtin_records(secrets)
    others = [record.slug for record in builtin if record.slug not in slugs]
    chosen = next((record for record in own if record.slug == model), None)
    checkpoints: list[dict[str, str]] = []
    if chosen is not None and chosen.config.provider is None:
        checkpoints = checkpoint_options(registry, chosen)
    deployed, _ = Environments(store, who.team_id).page(None, MOST_ENVIRONMENTS, 0)
    return {
        "models": slugs,
        "others": others,
        "model": model if model in (*slugs, *others) else "",
        "checkpoints": checkpoints,
        "checkpoint": checkpoint,
        "environments": [
            {"name": row["name"], "ready": row["latest_build"] is not None} for row in deployed
        ],
        "environment": environment,
        "own_machine": not config.keys,
        "tasksets": [vars(choice) for choice in Playable(store, who.team_id).choices()],
        "taskset": taskset,
        "tasks": _tasks(store, who.team_id, taskset, task) if taskset else [],
        "task": task,
    }


@router.post("/playground/turn", dependencies=_RUN)
async def turn(
    gateway: GatewayPart,
    limits: Annotated[Limits, part(lambda parts: parts.limits)],
    who: Who,
) -> Response:
    """Request the next turn of a model: a chat completion, streamed by the gateway."""
    await limits.count(who)
    return _Completion(gateway)


@router.post("/playground/rating", dependencies=_RUN)
def rate(store: StorePart, who: Who, rater: Rater, body: RatedConversation) -> Response:
    """Rate the conversation with a thumb, which makes it a run; returns the run's id and its reward."""
    outcome = record_rating(store, who.team_id, who.key_id, rater, body)
    return _json({"trace_id": outcome["trace_id"], "reward": outcome["reward"]})


@router.post("/playground/worlds", dependencies=_RUN)
async def open_world(
    store: StorePart, worlds: WorldsPart, who: Who, body: WorldRequest
) -> Response:
    """Start an environment; returns its tools as in chat completions, its templates, and a task's prompt."""
    task, environment = None, body.environment
    if body.taskset or body.task:
        rows = await asyncio.to_thread(TasksetRows, store, who.team_id, body.taskset)
        task = task_of(await asyncio.to_thread(rows.get, body.task))
        environment = task.env
    world = await worlds.bring_up(who, environment, "" if task else body.path)
    tools = [{"type": "function", "function": tool.function()} for tool in world.tools]
    prompt = None
    if task is not None:
        try:
            prompt = _prompt(await worlds.start(world, task.id, task.args))
        except HudError:
            await worlds.end(world)
            raise
    return _json(
        {
            "id": world.id,
            "name": world.name,
            "tools": tools,
            "templates": world.templates,
            "prompt": prompt,
            "verified": task is not None and task.verifier is not None,
        }
    )


@router.post("/playground/worlds/{world_id}/task", dependencies=_RUN)
async def start(worlds: WorldsPart, who: Who, world_id: str, body: TaskRequest) -> Response:
    """Start a task in an open environment; returns its prompt as messages."""
    world = worlds.find(who, world_id)
    return _json({"prompt": _prompt(await worlds.start(world, body.template, body.arguments))})


@router.post("/playground/worlds/{world_id}/grade", dependencies=_RUN)
async def grade(worlds: WorldsPart, who: Who, world_id: str, body: Answer) -> Response:
    """Grade the answer to the started task; returns the reward and its parts. Nothing is recorded."""
    frame = await worlds.grade(worlds.find(who, world_id), body.answer)
    grade_fields = grade_of(frame) or {}
    if grade_fields.get("is_error"):
        raise UsageError(grade_fields["content"] or "The grader failed.")
    return _json({name: grade_fields.get(name) for name in ("reward", "content", "parts")})


@router.post("/playground/worlds/{world_id}/call", dependencies=_RUN)
async def call(worlds: WorldsPart, who: Who, world_id: str, body: ToolCall) -> Response:
    """Call a tool; returns its result as text, and the number of images in it."""
    world = worlds.find(who, world_id)
    result = await worlds.call(world, body.name, body.arguments)
    text = result.text
    if len(text) > LONGEST_RESULT:
        text = f"{text[:LONGEST_RESULT]}\n… {len(text) - LONGEST_RESULT:,} more characters"
    pictures = sum(block.type == "image" for block in result.content)
    return _json({"text": text, "is_error": result.is_error, "pictures": pictures})


@router.post("/playground/worlds/{world_id}/close", dependencies=_RUN)
async def close(worlds: WorldsPart, who: Who, world_id: str) -> Response:
    """Close an environment. Idempotent."""
    try:
        world = worlds.find(who, world_id)
    except NotFoundError:
        return _json({"closed": False})
    await worlds.end(world)
    return _json({"closed": True})


class _Completion(Response):
    """Response that the gateway writes itself."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        await self._gateway.serve(exchange, CHAT, CHAT_CALL)


def _prompt(messages: list[Message]) -> list[dict[str, str]]:
    """Return a task's prompt as text messages for the page."""
    return [{"role": message.role, "content": message.text} for message in messages]


def _tasks(store: Store, team: str, taskset: str, task: str) -> list[dict[str, str]]:
    """Return the name and the display name of the first tasks, and of the chosen one."""
    rows = TasksetRows(store, team, taskset)
    slugs = rows.slugs()
    shown = slugs[:MOST_TASKS]
    if task in slugs and task not in shown:
        shown = [task, *shown]
    return [{"slug": row["name"], "label": row_label(row)} for row in rows.named(shown)]


def _json(value: Any) -> Response:
    return Response(exact_json.dumps(value), media_type="application/json")
