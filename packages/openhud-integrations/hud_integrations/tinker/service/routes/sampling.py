"""Routes of Tinker's API for sessions, sampling clients and results, as the package `tinker` 0.38 calls them.

POST /api/v1/client/config | client/dynamic_config | telemetry      GET /api/v1/get_server_capabilities | healthz
POST /api/v1/create_session | session_heartbeat | sessions/{id}/finish
POST /api/v1/create_sampling_session | asample      POST /api/v1/retrieve_future | cancel_future

Work is answered with a request id at once, and its result is fetched by long polls. The id is derived from the client's
number of the request: a request that is sent twice runs once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from hud.errors import ConflictError, HudError, PlatformError, UsageError
from hud.trace import new_id
from hud_integrations.tinker.service.base_models import configuration_of, name_of
from hud_integrations.tinker.service.client_state import NAME, ClientState
from hud_integrations.tinker.service.futures import Answer, Content, is_sampling
from hud_integrations.tinker.service.sampling_clients import sampler_of_model
from hud_integrations.tinker.service.training_clients import sampler_id
from hud_integrations.tinker.service.wire.requests import (
    CreateSamplingSession,
    CreateSession,
    Finish,
    OfSession,
    Retrieve,
    Sample,
)
from hud_platform.access.limits import TokenBudget
from hud_platform.dependencies import RUN, LedgerPart, LimitsPart, Models, Who, service_part
from hud_platform.gateway.ledger import CLIENT_GONE, LONGEST_ANSWER, Meter

_INLINE_BYTES = 1 << 20
"""Size up to which a body is hashed on the event loop."""


async def _content(request: Request) -> Content:
    body, path = await request.body(), request.url.path
    if len(body) < _INLINE_BYTES:
        return Content.of(path, body)
    return await run_in_threadpool(Content.of, path, body)


SentContent = Annotated[Content, Depends(_content)]
TinkerPart = Annotated[ClientState, service_part(NAME)]


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
async def create_session(tinker: TinkerPart, who: Who, body: CreateSession) -> dict[str, Any]:
    made = tinker.sessions.create(
        who,
        user_metadata=body.user_metadata or {},
        display_name=body.display_name,
        sdk_version=body.sdk_version,
    )
    return {"session_id": made.id, "type": "create_session"}


@router.post("/session_heartbeat")
async def session_heartbeat(tinker: TinkerPart, who: Who, body: OfSession) -> dict[str, Any]:
    tinker.sessions.open(body.session_id, who)
    return {}


@router.post("/sessions/{session_id}/finish")
async def finish(tinker: TinkerPart, who: Who, session_id: str, body: Finish) -> Response:
    session = tinker.sessions.of_holder(session_id, who)
    await tinker.finish(session, str(body.reason.get("type", "success")))
    return Response(status_code=204)


@router.post("/create_sampling_session")
async def create_sampling_session(
    tinker: TinkerPart, registry: Models, who: Who, body: CreateSamplingSession
) -> dict[str, Any]:
    session = tinker.sessions.open(body.session_id, who)
    sampler = await run_in_threadpool(
        sampler_of_model, registry, base_model=body.base_model, model_path=body.model_path
    )
    made = sampler_id(
        session.id, body.sampling_session_seq_id, sampler.model.id, sampler.checkpoint
    )
    session.add_sampler(made)
    return {"sampling_session_id": made, "type": "create_sampling_session"}


@router.post("/asample")
async def asample(
    tinker: TinkerPart,
    registry: Models,
    who: Who,
    limits: LimitsPart,
    ledger: LedgerPart,
    request: Request,
    content: SentContent,
    body: Sample,
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
        own = f"sample:{request.headers.get('x-idempotency-key') or new_id()}"
    model = sampler.model.slug
    budget = TokenBudget(limits, who)

    async def work() -> Answer:
        began, status = time.perf_counter(), 200
        meter = Meter(budget=budget if who.tokens_per_minute is not None else None)
        try:
            return await tinker.sampling.sample(sampler, body, who.team_id, meter)
        except asyncio.CancelledError:
            status = CLIENT_GONE
            raise
        except Exception:
            meter, status = Meter(), 0
            raise
        finally:
            if status:
                ledger.add(
                    meter,
                    team_id=who.team_id,
                    key_id=who.key_id,
                    trace_id=None,
                    route="asample",
                    model=model,
                    status=status,
                    seconds=time.perf_counter() - began,
                    cost_usd=None,
                )
            await budget.settle(meter.charged)

    if not tinker.futures.knows(own, who):
        params, count = body.sampling_params, body.num_samples
        prompt = body.prompt.length * count
        bound = await budget.reserve(prompt, params.max_tokens, LONGEST_ANSWER, count)
        if bound is not None:
            params.max_tokens = bound
    try:
        started = tinker.futures.start(own, who, content, work)
    except HudError:
        await budget.settle(0)
        raise
    if not started:
        await budget.settle(0)
    names = [f"{own}:{number}" for number in range(body.num_samples)]
    return {"request_id": own, "sample_sequence_ids": names}


@router.post("/retrieve_future")
async def retrieve_future(tinker: TinkerPart, who: Who, body: Retrieve) -> Response:
    """The result of a request; 408 while it runs; 410 for one that is unknown, which the client then sends again."""
    if not tinker.futures.knows(body.request_id, who):
        raise PlatformError(
            f"There is no request {body.request_id!r} here any more; send it again.", 410
        )
    answer = await tinker.poll(body.request_id, who)
    if answer is None:
        again = {"type": "try_again", "request_id": body.request_id, "queue_state": "active"}
        return Response(json.dumps(again), 408, media_type="application/json")
    return Response(answer.content, media_type=answer.media_type)


@router.post("/cancel_future")
async def cancel_future(tinker: TinkerPart, who: Who, body: Retrieve) -> Response:
    """Stop sampling for a client that no longer waits."""
    if tinker.futures.knows(body.request_id, who) and is_sampling(body.request_id):
        tinker.futures.cancel(body.request_id, who)
    return Response(status_code=204)
