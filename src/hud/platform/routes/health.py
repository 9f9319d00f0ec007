"""Routes for those who watch over a server.

GET /healthz      GET /readyz      GET /metrics
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from hud.errors import StoreError
from hud.platform.metrics import CONTENT_TYPE
from hud.platform.rollouts.queue_lengths import measure_queues

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthy() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
def ready(request: Request) -> JSONResponse:
    """The store answers too, the engine is there for whom needs it, and the server is not on its way out."""
    platform = request.app.state.platform
    parts: dict[str, Any] = {
        "store": "ok",
        "engine": "ok" if platform.engine_up else "being started again",
        "stopping": platform.stopping.is_set(),
    }
    try:
        with platform.store.read() as connection:
            connection.execute(sa.text("SELECT 1"))
    except StoreError:
        parts["store"] = "unavailable"  # Why is in the log: anybody may ask here.
    fine = parts["store"] == parts["engine"] == "ok" and not parts["stopping"]
    return JSONResponse({"status": "ok" if fine else "unavailable", **parts}, 200 if fine else 503)


@router.get("/metrics")
def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    platform = request.app.state.platform
    measure_queues(platform)
    return Response(platform.metrics.render(), media_type=CONTENT_TYPE)
