"""Routes for monitoring a server.

GET /healthz      GET /readyz      GET /metrics
"""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from hud.errors import StoreError
from hud_platform.dependencies import StoppingPart, StorePart, part
from hud_platform.environments.build_queue import Builds
from hud_platform.process.metrics import CONTENT_TYPE, Metrics
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.serving.token_engine import TokenEngine
from hud_platform.store.telemetry_admission import Intake

router = APIRouter(tags=["health"])
UsedEngine = Annotated[TokenEngine | None, part(lambda parts: parts.used_engine)]


@router.get("/healthz")
async def healthy() -> dict[str, str]:
    """Liveness: the process responds."""
    return {"status": "ok"}


@router.get("/readyz")
def ready(store: StorePart, engine: UsedEngine, stopping: StoppingPart) -> JSONResponse:
    """Readiness: the store responds, the engine is available if in use, and the server is not shutting down."""
    parts: dict[str, Any] = {
        "store": "ok",
        "engine": "ok" if engine is None or engine.up else "being started again",
        "stopping": stopping.is_set(),
    }
    try:
        store.value(sa.select(1))
    except StoreError:
        parts["store"] = "unavailable"  # The reason is only logged: this route is public.
    fine = parts["store"] == parts["engine"] == "ok" and not parts["stopping"]
    return JSONResponse({"status": "ok" if fine else "unavailable", **parts}, 200 if fine else 503)


@router.get("/metrics")
def prometheus_metrics(
    metrics: Annotated[Metrics, part(lambda parts: parts.metrics)],
    store: StorePart,
    intake: Annotated[Intake, part(lambda parts: parts.intake)],
    engine: UsedEngine,
) -> Response:
    """Metrics in Prometheus' text format; the lengths of queues are read at the request."""
    sizes = {"streams": 0 if engine is None else engine.streams, "telemetry": intake.uploads}
    for queue in (Rollouts, Builds):
        waiting = sa.select(sa.func.count()).where(queue.table.c.status == queue.waiting)
        sizes[queue.table.name] = store.value(waiting)
    for name, size in sizes.items():
        metrics.queues.labels(name).set(size)
    metrics.telemetry_bytes.set(intake.bytes)
    return Response(metrics.render(), media_type=CONTENT_TYPE)
