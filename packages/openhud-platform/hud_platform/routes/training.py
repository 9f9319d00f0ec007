"""Routes of training: HUD's five calls, and the records of training runs.

    POST /v1/models/{id}/train/forward-backward | forward | backward | optim-step      GET .../losses
    POST /v1/models/{id}/train/open | hold | render | loss | discard | close
    POST, GET /v2/training-runs      GET, POST /v2/training-runs/{id}      POST, GET /v2/training-runs/{id}/steps

Responses of the first line have exactly the keys that HUD's client expects.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from hud.client.contributor import HEADER, read_contributor
from hud.learning.losses.config import available_losses
from hud.learning.training_calls import OPTIM_STEP, TRAINING_CALLS, Call
from hud.learning.wire_types import LossesResult
from hud_platform.dependencies import (
    TRAIN,
    Audit,
    EnginePart,
    Models,
    Steps,
    StrictBody,
    Who,
    of_team,
)
from hud_platform.training.runs import TrainingRuns

router = APIRouter(tags=["training"], dependencies=TRAIN)
Runs = Annotated[TrainingRuns, of_team(TrainingRuns)]
_TRAIN = "/v1/models/{model_id}/train"


class NewTrainingRun(StrictBody):
    """Request to record a new training run."""

    model: str
    config: dict[str, Any]
    state: dict[str, Any]


class TrainingRunChange(StrictBody):
    """Changed fields of a training run; other state keys are unchanged."""

    status: str | None = None
    state: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    """The whole configuration, of a run that takes more steps than it was begun with."""


class StepReport(StrictBody):
    """Metrics of one step, after which the run continues at `next_step`. A repeated report replaces the first."""

    step: int
    next_step: int
    metrics: dict[str, Any]
    state: dict[str, Any] | None = None


@router.get(_TRAIN + "/losses")
def losses(registry: Models, model_id: str) -> LossesResult:
    registry.model(model_id)
    return LossesResult(losses=available_losses())


def _serve(call: Call[Any, Any]) -> None:
    """Add the route of one call of a training session."""

    async def answer(
        request: Request,
        registry: Models,
        engine: EnginePart,
        steps: Steps,
        who: Who,
        model_id: str,
        body: Any,
    ) -> Response:
        client = read_contributor(request.headers.get(HEADER), who.key_id, who.holder)
        model = await run_in_threadpool(registry.model, model_id)
        work = engine.call(model, call.request() if body is None else body, client)
        if call is OPTIM_STEP:
            work = steps.take(model.id, work)
        return Response(await work, media_type="application/json")

    required = any(field.is_required() for field in call.request.model_fields.values())
    answer.__annotations__["body"] = call.request if required else call.request | None
    answer.__defaults__ = None if required else (None,)
    router.add_api_route(
        f"{_TRAIN}/{call.name}",
        answer,
        methods=["POST"],
        name=call.name.replace("-", "_"),
        description=call.request.__doc__,
        response_model=call.answer,
    )


for call in TRAINING_CALLS:
    _serve(call)


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
    return runs.change(run_id, body.status, body.state, body.config)


@router.post("/v2/training-runs/{run_id}/steps")
def report_step(runs: Runs, run_id: str, body: StepReport) -> dict[str, Any]:
    runs.report(run_id, body.step, body.metrics, body.next_step, body.state)
    return {"step": body.step}


@router.get("/v2/training-runs/{run_id}/steps")
def list_steps(runs: Runs, run_id: str) -> dict[str, Any]:
    items = runs.steps(run_id)
    return {"items": items, "total": len(items)}
