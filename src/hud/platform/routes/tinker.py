"""Routes of Tinker's API for training and sampling clients, as the package `tinker` 0.38 calls them.

POST /api/v1/client/config | client/dynamic_config | telemetry      GET /api/v1/get_server_capabilities | healthz
POST /api/v1/create_session | session_heartbeat | sessions/{id}/finish
POST /api/v1/create_model | get_info | forward_backward | optim_step | save_weights | load_weights
POST /api/v1/save_weights_for_sampler | save_weights_external | unload_model
POST /api/v1/create_sampling_session | asample      POST /api/v1/retrieve_future | cancel_future

Work is answered with a request id at once, and its result is fetched by long polls. The id is derived from the client's
number of the request: a request that is sent twice runs once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from hud.errors import ConflictError, PlatformError, UsageError
from hud.platform.dependencies import RUN, TRAIN, Audit, Models, Team, Who, part
from hud.platform.tinker.base_models import base_of, configuration_of, name_of, tokenizer_of
from hud.platform.tinker.futures import Answer
from hud.platform.tinker.messages import read_forward_backward
from hud.platform.tinker.requests import (
    CreateModel,
    CreateSamplingSession,
    CreateSession,
    Finish,
    LoadWeights,
    Numbered,
    OfModel,
    OfSession,
    OptimStep,
    Retrieve,
    Sample,
    SaveWeights,
    SaveWeightsForSampler,
)
from hud.platform.tinker.sampling_clients import sampler_of_model
from hud.platform.tinker.service import Tinker
from hud.platform.tinker.training_clients import TrainingClient, sampler_id
from hud.trace import new_id

TinkerPart = Annotated[Tinker, part(lambda parts: parts.tinker)]
B = TypeVar("B", bound=Numbered)


class TinkerRoute(APIRoute):
    """A route that answers conflicts with 400: Tinker's client takes a 409 for a lock, and tries for five minutes."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handler(request)
            except ConflictError as error:
                raise UsageError(str(error)) from error

        return handled


router = APIRouter(prefix="/api/v1", tags=["tinker"], dependencies=RUN, route_class=TinkerRoute)


@router.post("/client/config")
@router.post("/client/dynamic_config")
def client_config() -> dict[str, Any]:
    """Flags of the client: its defaults."""
    return {"sample_cancel_enabled": True}


@router.post("/telemetry")
def telemetry() -> dict[str, str]:
    """Events of the client, which are dropped."""
    return {"status": "accepted"}


@router.get("/healthz")
def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/get_server_capabilities")
def capabilities(registry: Models) -> dict[str, Any]:
    """Models of the team that can be trained and sampled."""
    models = [model for model in registry.models() if model.config.provider is None]
    return {
        "supported_models": [
            {
                "model_name": name_of(model),
                "max_context_length": configuration_of(model).get("max_position_embeddings"),
                "trainable": True,
                "sampleable": True,
            }
            for model in models
        ]
    }


@router.post("/create_session")
async def create_session(tinker: TinkerPart, team: Team, body: CreateSession) -> dict[str, Any]:
    made = tinker.sessions.create(
        team,
        user_metadata=body.user_metadata or {},
        display_name=body.display_name,
        sdk_version=body.sdk_version,
    )
    return {"session_id": made.id, "type": "create_session"}


@router.post("/session_heartbeat")
async def session_heartbeat(tinker: TinkerPart, team: Team, body: OfSession) -> dict[str, Any]:
    tinker.sessions.open(body.session_id, team)
    return {}


@router.post("/sessions/{session_id}/finish")
async def finish(tinker: TinkerPart, team: Team, session_id: str, body: Finish) -> Response:
    session = tinker.sessions.get(session_id, team)
    await tinker.finish(session, str(body.reason.get("type", "success")))
    return Response(status_code=204)


@router.post("/create_model", dependencies=TRAIN)
async def create_model(
    tinker: TinkerPart, registry: Models, team: Team, audit: Audit, body: CreateModel
) -> dict[str, Any]:
    body.optimizer_config.check()
    session = tinker.sessions.open(body.session_id, team)
    create = tinker.training.create
    return _made(
        tinker,
        team,
        audit,
        f"{session.id}:create:{body.model_seq_id}",
        body.base_model,
        lambda: create(registry, session, body),
    )


@router.post("/get_info")
async def get_info(
    tinker: TinkerPart, registry: Models, team: Team, body: OfModel
) -> dict[str, Any]:
    training = tinker.training.get(body.model_id, team)
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
async def forward_backward(tinker: TinkerPart, team: Team, request: Request) -> dict[str, Any]:
    """A pass, as protocol buffer. With `forward_only` no gradient is accumulated."""
    data = await request.body()
    body = await asyncio.to_thread(read_forward_backward, data)
    training = tinker.training.get(body.model_id, team)
    work = tinker.training.forward_backward
    return _in_turn(tinker, training, body.seq_id, lambda: work(training, body))


@router.post("/optim_step", dependencies=TRAIN)
async def optim_step(tinker: TinkerPart, team: Team, body: OptimStep) -> dict[str, Any]:
    return _numbered(tinker, team, body, tinker.training.optim_step)


@router.post("/save_weights", dependencies=TRAIN)
async def save_weights(tinker: TinkerPart, team: Team, body: SaveWeights) -> dict[str, Any]:
    save = tinker.training.save_weights
    return _numbered(tinker, team, body, lambda training, one: save(training, one, "weights"))


@router.post("/save_weights_external", dependencies=TRAIN)
async def save_weights_external(
    tinker: TinkerPart, team: Team, body: SaveWeights
) -> dict[str, Any]:
    """Save weights whose files can be downloaded: a Hugging Face folder, or an adapter of PEFT."""
    if body.age_encryption_recipients:
        raise UsageError("Files are not encrypted here; leave age_encryption_recipients out.")
    save = tinker.training.save_weights
    kind = "external_weights"
    return _numbered(tinker, team, body, lambda training, one: save(training, one, kind))


@router.post("/save_weights_for_sampler", dependencies=TRAIN)
async def save_weights_for_sampler(
    tinker: TinkerPart, team: Team, body: SaveWeightsForSampler
) -> dict[str, Any]:
    save = tinker.training.save_for_sampler
    session_id = body.model_id.partition(":")[0]
    return _numbered(tinker, team, body, lambda training, one: save(training, session_id, one))


@router.post("/load_weights", dependencies=TRAIN)
async def load_weights(
    tinker: TinkerPart, registry: Models, team: Team, audit: Audit, body: LoadWeights
) -> dict[str, Any]:
    """Load a checkpoint into a model or, with a session, make a model of it."""
    if body.optimizer_config is not None:
        body.optimizer_config.check()
    if body.session_id is None:
        training = tinker.training.get(body.model_id or "", team)
        load = tinker.training.load_weights
        return _in_turn(tinker, training, body.seq_id or 0, lambda: load(training, body))
    session = tinker.sessions.open(body.session_id, team)
    create = tinker.training.create_from
    answer = _made(
        tinker,
        team,
        audit,
        f"{session.id}:create:{body.model_seq_id}",
        body.path,
        lambda: create(registry, session, body),
    )
    return {**answer, "model_id": f"{session.id}:train:{body.model_seq_id}"}


@router.post("/unload_model", dependencies=TRAIN)
async def unload_model(tinker: TinkerPart, team: Team, body: OfModel) -> dict[str, Any]:
    training = tinker.training.get(body.model_id, team)
    request_id = f"{training.name}:unload:{new_id()[:8]}"

    async def work() -> Answer:
        await tinker.training.release(training.name)
        return Answer.of(model_id=training.name, type="unload_model")

    tinker.futures.start(request_id, team, work)
    return {"request_id": request_id, "model_id": training.name}


@router.post("/create_sampling_session")
async def create_sampling_session(
    tinker: TinkerPart, registry: Models, team: Team, body: CreateSamplingSession
) -> dict[str, Any]:
    session = tinker.sessions.open(body.session_id, team)
    sampler = await run_in_threadpool(
        sampler_of_model, registry, base_model=body.base_model, model_path=body.model_path
    )
    made = sampler_id(
        session.id, body.sampling_session_seq_id, sampler.model.id, sampler.checkpoint
    )
    session.samplers.append(made)
    return {"sampling_session_id": made, "type": "create_sampling_session"}


@router.post("/asample")
async def asample(
    tinker: TinkerPart, registry: Models, team: Team, who: Who, request: Request, body: Sample
) -> dict[str, Any]:
    """Sample sequences of a sampling client, of a model, or of a path."""
    if body.sampling_session_id is not None:
        sampler = await tinker.sampling.find(registry, body.sampling_session_id)
    else:
        sampler = await run_in_threadpool(
            sampler_of_model, registry, base_model=body.base_model, model_path=body.model_path
        )
    own = f"{body.sampling_session_id}:{body.seq_id}"
    if body.sampling_session_id is None or body.seq_id is None:
        own = f"sample:{team}:{request.headers.get('x-idempotency-key') or new_id()}"
    gateway, model = request.app.state.parts.gateway, sampler.model.slug

    async def work() -> Answer:
        began = time.perf_counter()
        answer, meter = await tinker.sampling.sample(sampler, body, team)
        gateway.ledger.add(
            meter,
            team_id=who.team_id,
            key_id=who.key_id,
            trace_id=None,
            route="asample",
            model=model,
            status=200,
            seconds=time.perf_counter() - began,
            cost_usd=None,
        )
        gateway.limits.charge(who, meter.charged)
        return answer

    tinker.futures.start(own, team, work)
    names = [f"{own}:{number}" for number in range(body.num_samples)]
    return {"request_id": own, "sample_sequence_ids": names}


@router.post("/retrieve_future")
async def retrieve_future(tinker: TinkerPart, team: Team, body: Retrieve) -> Response:
    """The result of a request; 408 while it runs; 410 for one that is unknown, which the client then sends again."""
    if not tinker.futures.knows(body.request_id, team):
        raise PlatformError(
            f"There is no request {body.request_id!r} here any more; send it again.", 410
        )
    answer = await tinker.poll(body.request_id)
    if answer is None:
        again = {"type": "try_again", "request_id": body.request_id, "queue_state": "active"}
        return Response(json.dumps(again), 408, media_type="application/json")
    return Response(answer.content, media_type=answer.media_type)


@router.post("/cancel_future")
async def cancel_future(tinker: TinkerPart, team: Team, body: Retrieve) -> Response:
    """Stop sampling for a client that no longer waits."""
    if tinker.futures.knows(body.request_id, team) and ":sample:" in f":{body.request_id}":
        tinker.futures.cancel(body.request_id)
    return Response(status_code=204)


def _made(
    tinker: Tinker,
    team: str,
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

    tinker.futures.start(request_id, team, work)
    return {"request_id": request_id}


def _numbered(
    tinker: Tinker, team: str, body: B, work: Callable[[TrainingClient, B], Awaitable[Answer]]
) -> dict[str, Any]:
    training = tinker.training.get(body.model_id, team)
    return _in_turn(tinker, training, body.seq_id, lambda: work(training, body))


def _in_turn(
    tinker: Tinker, training: TrainingClient, number: int, work: Callable[[], Awaitable[Answer]]
) -> dict[str, Any]:
    """Queue a request of a training client under its number; one that was queued before is not queued again."""
    team = training.registry.team
    assert team is not None
    if number < 1:
        raise UsageError("The request has no seq_id; a training client counts its requests from 1.")
    request_id = f"{training.name}:{number}"
    if not tinker.futures.knows(request_id, team) and training.turns.passed(number):
        raise UsageError(
            f"Request {number} of {training.name!r} has run, and its result is not kept any longer."
        )
    tinker.futures.start(request_id, team, lambda: training.turns.take(number, work))
    return {"request_id": request_id, "model_id": training.name}
