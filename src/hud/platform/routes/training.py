"""Routes of training: HUD's five calls, and the journal of training runs.

    POST /v1/models/{id}/train/forward-backward | forward | backward | optim-step      GET .../losses
    POST /v1/models/{id}/train/open | hold | render | discard | close
    POST, GET /v2/training-runs      GET, POST /v2/training-runs/{id}      POST, GET /v2/training-runs/{id}/steps

Answers of the first line hold exactly the keys that HUD's client expects.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool

from hud.learning.losses.config import available_losses
from hud.learning.wire_types import (
    BackwardRequest,
    ForwardBackwardRequest,
    ForwardBackwardResult,
    ForwardRequest,
    ForwardResult,
    LossesResult,
    OptimStepRequest,
    OptimStepResult,
)
from hud.platform.access import caller, needs
from hud.platform.dependencies import Audit, Models, of_team
from hud.platform.parts import Parts
from hud.platform.serving.training import (
    CloseRequest,
    DiscardRequest,
    HoldRequest,
    OpenRequest,
    RenderRequest,
)
from hud.platform.training.runs import TrainingRuns
from hud.train.contributor import HEADER, read_contributor

router = APIRouter(tags=["training"], dependencies=[Depends(needs("train"))])
Runs = Annotated[TrainingRuns, of_team(TrainingRuns)]
_TRAIN = "/v1/models/{model_id}/train"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewTrainingRun(_Strict):
    """A training run that begins."""

    model: str
    config: dict[str, Any]
    state: dict[str, Any]


class TrainingRunChange(_Strict):
    """Changed fields of a training run; state keys that are not named stay."""

    status: str | None = None
    state: dict[str, Any] | None = None


class StepReport(_Strict):
    """One step's metrics; with it the run goes on to `next_step`. Reporting it again replaces it."""

    step: int
    next_step: int
    metrics: dict[str, Any]
    state: dict[str, Any] | None = None


@router.get(_TRAIN + "/losses")
def losses(registry: Models, model_id: str) -> LossesResult:
    registry.model(model_id)
    return LossesResult(losses=available_losses())


@router.post(_TRAIN + "/forward-backward", response_model=ForwardBackwardResult)
async def forward_backward(
    request: Request, model_id: str, body: ForwardBackwardRequest
) -> Response:
    return await _call(request, model_id, "forward-backward", body)


@router.post(_TRAIN + "/forward", response_model=ForwardResult)
async def forward(request: Request, model_id: str, body: ForwardRequest) -> Response:
    return await _call(request, model_id, "forward", body)


@router.post(_TRAIN + "/backward", response_model=ForwardBackwardResult)
async def backward(request: Request, model_id: str, body: BackwardRequest) -> Response:
    return await _call(request, model_id, "backward", body)


@router.post(_TRAIN + "/optim-step", response_model=OptimStepResult)
async def optim_step(request: Request, model_id: str, body: OptimStepRequest) -> Response:
    return await _call(request, model_id, "optim-step", body)


@router.post(_TRAIN + "/open")
async def open_session(
    request: Request, model_id: str, body: OpenRequest | None = None
) -> Response:
    """Take the model's lease, load what training continues from, and begin with nothing accumulated and an empty cache."""
    return await _call(request, model_id, "open", body or OpenRequest())


@router.post(_TRAIN + "/render")
async def render(request: Request, model_id: str, body: RenderRequest) -> Response:
    """Return recorded conversations as the token ids that the model would have been given and have drawn."""
    return await _call(request, model_id, "render", body)


@router.post(_TRAIN + "/close")
async def close(request: Request, model_id: str, body: CloseRequest | None = None) -> Response:
    """End the session: what was accumulated is dropped, and the lease is free."""
    return await _call(request, model_id, "close", body or CloseRequest())


@router.post(_TRAIN + "/hold")
async def hold(request: Request, model_id: str) -> Response:
    """Take a sign of life of the training run that has the session to itself."""
    return await _call(request, model_id, "hold", HoldRequest())


@router.post(_TRAIN + "/discard")
async def discard(request: Request, model_id: str) -> Response:
    """Throw away what is accumulated; a client that loses it is notified at its next call."""
    return await _call(request, model_id, "discard", DiscardRequest())


@router.post("/v2/training-runs")
def start_run(registry: Models, runs: Runs, audit: Audit, body: NewTrainingRun) -> dict[str, Any]:
    model = registry.model(body.model)
    begun = runs.start(model.id, body.config, body.state)
    audit.note("training launched", model.slug, model_id=model.id, training_run=begun["id"])
    return begun


@router.get("/v2/training-runs")
def list_runs(registry: Models, runs: Runs, model: str | None = None) -> dict[str, Any]:
    model_id = None if model is None else registry.model(model).id
    items = runs.recent(model_id)
    return {"items": items, "total": len(items)}


@router.get("/v2/training-runs/{run_id}")
def describe_run(runs: Runs, run_id: str) -> dict[str, Any]:
    return runs.get(run_id)


@router.post("/v2/training-runs/{run_id}")
def change_run(runs: Runs, run_id: str, body: TrainingRunChange) -> dict[str, Any]:
    return runs.change(run_id, body.status, body.state)


@router.post("/v2/training-runs/{run_id}/steps")
def report_step(runs: Runs, run_id: str, body: StepReport) -> dict[str, Any]:
    runs.report(run_id, body.step, body.metrics, body.next_step, body.state)
    return {"step": body.step}


@router.get("/v2/training-runs/{run_id}/steps")
def list_steps(runs: Runs, run_id: str) -> dict[str, Any]:
    items = runs.steps(run_id)
    return {"items": items, "total": len(items)}


async def _call(request: Request, model_id: str, call: str, body: BaseModel) -> Response:
    """Ask the engine; the model is looked up off the event loop."""
    parts: Parts = request.app.state.parts
    who = caller(request)
    client = read_contributor(request.headers.get(HEADER), who.key_id)
    model = await run_in_threadpool(parts.registry.of(who.team_id).model, model_id)
    work = parts.engine.train(model, call, body, client)
    if call == "optim-step":
        answer = await parts.steps.take(model.id, work)
    else:
        answer = await work
    return Response(answer, media_type="application/json")
