"""Routes of Tinker's API for training clients, as the package `tinker` 0.38 calls them.

POST /api/v1/create_model | get_info | forward_backward | optim_step | save_weights | load_weights
POST /api/v1/save_weights_for_sampler | save_weights_external | unload_model

A training client numbers its requests, and they run in that order: each is answered with a request id at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from hud.errors import HudError, UsageError
from hud.trace import new_id
from hud_integrations.tinker.service.base_models import (
    base_of,
    configuration_of,
    name_of,
    tokenizer_of,
)
from hud_integrations.tinker.service.client_state import NAME, ClientState
from hud_integrations.tinker.service.futures import Answer, Content
from hud_integrations.tinker.service.routes.sampling import SentContent, TinkerPart, TinkerRoute
from hud_integrations.tinker.service.training_clients import TrainingClient
from hud_integrations.tinker.service.wire.messages import read_forward_backward
from hud_integrations.tinker.service.wire.requests import (
    CreateModel,
    LoadWeights,
    Numbered,
    OfModel,
    OptimStep,
    SaveWeights,
    SaveWeightsForSampler,
)
from hud_platform.access.identity import Identity, caller
from hud_platform.dependencies import RUN, TRAIN, Audit, Models, Who, service_of

B = TypeVar("B", bound=Numbered)


class TrainingRoute(TinkerRoute):
    """A route of a training client. A refused request takes its turn as one that failed: later ones would wait for it."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                answer: Response = await handler(request)
                return answer
            except (UsageError, RequestValidationError):
                with suppress(ValidationError, HudError):
                    _fail_in_turn(request, await request.body())
                raise

        return handled


router = APIRouter(prefix="/api/v1", tags=["tinker"], dependencies=RUN, route_class=TrainingRoute)


@router.post("/create_model", dependencies=TRAIN)
async def create_model(
    tinker: TinkerPart,
    registry: Models,
    who: Who,
    content: SentContent,
    audit: Audit,
    body: CreateModel,
) -> dict[str, Any]:
    body.optimizer_config.check()
    session = tinker.sessions.open(body.session_id, who)
    create = tinker.training.create
    return _made(
        tinker,
        who,
        content,
        audit,
        f"{session.id}:create:{body.model_seq_id}",
        body.base_model,
        lambda: create(registry, session, body),
    )


@router.post("/get_info")
async def get_info(tinker: TinkerPart, registry: Models, who: Who, body: OfModel) -> dict[str, Any]:
    training = tinker.training.get(body.model_id, who)
    model = await run_in_threadpool(registry.model, training.model_id)
    base = await run_in_threadpool(base_of, registry, model)
    is_lora = model.config.training == "lora"
    return {
        "type": "get_info",
        "model_id": training.name,
        "model_data": {
            "arch": configuration_of(model).get("model_type"),
            "model_name": name_of(base),
            "tokenizer_id": await run_in_threadpool(tokenizer_of, registry, model),
        },
        "model_name": name_of(base),
        "is_lora": is_lora,
        "lora_rank": model.config.lora_rank if is_lora else None,
        "optimizer_config": {"type": "adamw"},
    }


@router.post("/forward_backward", dependencies=TRAIN)
async def forward_backward(
    tinker: TinkerPart, who: Who, content: SentContent, request: Request
) -> dict[str, Any]:
    """A pass, as protocol buffer. With `forward_only` no gradient is accumulated."""
    data = await request.body()
    body = await asyncio.to_thread(read_forward_backward, data)
    training = tinker.training.get(body.model_id, who)
    work = tinker.training.forward_backward
    return _in_turn(tinker, training, who, content, body.seq_id, lambda: work(training, body))


@router.post("/optim_step", dependencies=TRAIN)
async def optim_step(
    tinker: TinkerPart, who: Who, content: SentContent, body: OptimStep
) -> dict[str, Any]:
    return _numbered(tinker, who, content, body, tinker.training.optim_step)


@router.post("/save_weights", dependencies=TRAIN)
async def save_weights(
    tinker: TinkerPart, who: Who, content: SentContent, body: SaveWeights
) -> dict[str, Any]:
    save = tinker.training.save_weights
    return _numbered(
        tinker, who, content, body, lambda training, request: save(training, request, "weights")
    )


@router.post("/save_weights_external", dependencies=TRAIN)
async def save_weights_external(
    tinker: TinkerPart, who: Who, content: SentContent, body: SaveWeights
) -> dict[str, Any]:
    """Save weights whose files can be downloaded: a Hugging Face folder, or an adapter of PEFT."""
    if body.age_encryption_recipients:
        raise UsageError("Files are not encrypted here; leave age_encryption_recipients out.")
    save = tinker.training.save_weights
    kind = "external_weights"
    return _numbered(
        tinker, who, content, body, lambda training, request: save(training, request, kind)
    )


@router.post("/save_weights_for_sampler", dependencies=TRAIN)
async def save_weights_for_sampler(
    tinker: TinkerPart, who: Who, content: SentContent, body: SaveWeightsForSampler
) -> dict[str, Any]:
    save = tinker.training.save_for_sampler
    session_id = body.model_id.partition(":")[0]
    return _numbered(
        tinker, who, content, body, lambda training, request: save(training, session_id, request)
    )


@router.post("/load_weights", dependencies=TRAIN)
async def load_weights(
    tinker: TinkerPart,
    registry: Models,
    who: Who,
    content: SentContent,
    audit: Audit,
    body: LoadWeights,
) -> dict[str, Any]:
    """Load a checkpoint into a model or, with a session, make a model of it."""
    if body.optimizer_config is not None:
        body.optimizer_config.check()
    if body.session_id is None:
        training = tinker.training.get(body.model_id or "", who)
        load = tinker.training.load_weights
        return _in_turn(
            tinker, training, who, content, body.seq_id or 0, lambda: load(training, body)
        )
    session = tinker.sessions.open(body.session_id, who)
    create = tinker.training.create_from
    answer = _made(
        tinker,
        who,
        content,
        audit,
        f"{session.id}:create:{body.model_seq_id}",
        body.path,
        lambda: create(registry, session, body),
    )
    return {**answer, "model_id": f"{session.id}:train:{body.model_seq_id}"}


@router.post("/unload_model", dependencies=TRAIN)
async def unload_model(
    tinker: TinkerPart, who: Who, content: SentContent, body: OfModel
) -> dict[str, Any]:
    training = tinker.training.get(body.model_id, who)
    request_id = f"{training.name}:unload:{new_id()[:8]}"

    async def work() -> Answer:
        await tinker.training.release(training.name)
        return Answer.of(model_id=training.name, type="unload_model")

    tinker.futures.start(request_id, who, content, work)
    return {"request_id": request_id, "model_id": training.name}


def _made(
    tinker: ClientState,
    who: Identity,
    content: Content,
    audit: Audit,
    request_id: str,
    source: str,
    create: Callable[[], Awaitable[Answer]],
) -> dict[str, Any]:
    """Queue the creation of a model, which the audit log notes with its source."""

    async def work() -> Answer:
        made = await create()
        await asyncio.to_thread(
            audit.note, "model forked", json.loads(made.content)["model_id"], source=source
        )
        return made

    tinker.futures.start(request_id, who, content, work)
    return {"request_id": request_id}


def _numbered(
    tinker: ClientState,
    who: Identity,
    content: Content,
    body: B,
    work: Callable[[TrainingClient, B], Awaitable[Answer]],
) -> dict[str, Any]:
    training = tinker.training.get(body.model_id, who)
    return _in_turn(tinker, training, who, content, body.seq_id, lambda: work(training, body))


def _in_turn(
    tinker: ClientState,
    training: TrainingClient,
    who: Identity,
    content: Content,
    number: int,
    work: Callable[[], Awaitable[Answer]],
) -> dict[str, Any]:
    """Queue a request of a training client under its number; one that was queued before is not queued again."""
    if number < 1:
        raise UsageError("The request has no seq_id; a training client counts its requests from 1.")
    request_id = f"{training.name}:{number}"
    if not tinker.futures.knows(request_id, who) and training.turns.passed(number):
        raise UsageError(
            f"Request {number} of {training.name!r} has run and its result is not kept, or later ones ran without it."
        )
    tinker.futures.start(request_id, who, content, lambda: training.turns.take(number, work))
    return {"request_id": request_id, "model_id": training.name}


def _fail_in_turn(request: Request, sent: bytes) -> None:
    tinker: ClientState = service_of(request, NAME)
    body, who = Numbered.model_validate_json(sent), caller(request)
    training = tinker.training.get(body.model_id, who)

    async def work() -> Answer:
        raise UsageError("The request was refused when it was sent.")

    _in_turn(tinker, training, who, Content.of(request.url.path, sent), body.seq_id, work)
