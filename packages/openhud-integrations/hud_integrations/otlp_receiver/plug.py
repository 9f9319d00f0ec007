"""The entry point `otlp` of `hud.routes`: `POST /v1/traces`, where exporters of OpenTelemetry send spans over HTTP."""

from __future__ import annotations

from typing import Annotated

import anyio
from fastapi import APIRouter, Request, Response

from hud import exact_json
from hud.errors import UsageError
from hud_integrations.otlp_receiver.received_spans import receive_spans
from hud_integrations.otlp_receiver.spans import spans_of_json, spans_of_protobuf
from hud_platform.access.bodies import MANY_CONTAINERS, NESTED_DEEP
from hud_platform.dependencies import RUN, StorePart, Team, part
from hud_platform.plugs.route_plugs import RoutePlug
from hud_platform.routes.telemetry import unpacked_body
from hud_platform.store import Store
from hud_platform.store.ingest import NOT_OURS
from hud_platform.store.telemetry_admission import Intake

JSON, PROTOBUF = "application/json", "application/x-protobuf"

router = APIRouter(tags=["traces"], dependencies=RUN)


@router.post("/v1/traces")
async def receive_traces(
    request: Request,
    store: StorePart,
    intake: Annotated[Intake, part(lambda parts: parts.intake)],
    team: Team,
) -> Response:
    """Take spans of OpenTelemetry (OTLP over HTTP, JSON or protobuf). Durable when the response is sent; idempotent.

    Raises `UsageError` for another content type.
    """
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind not in (JSON, PROTOBUF):
        raise UsageError(f"Content-Type {kind!r} is not supported; send {PROTOBUF} or {JSON}.")
    with intake.upload() as taken:
        body = await unpacked_body(request, taken)
        await anyio.to_thread.run_sync(_receive, store, team, kind, body, limiter=intake.writers)
    # An empty message: all spans were taken.
    return Response(b"{}" if kind == JSON else b"", media_type=kind)


def _receive(store: Store, team: str, kind: str, body: bytes) -> None:
    if kind == JSON and exact_json.has_many_containers(body):
        raise UsageError(MANY_CONTAINERS)
    if kind == JSON and exact_json.is_nested_deep(body):
        raise UsageError(NESTED_DEEP)
    spans = spans_of_json(body) if kind == JSON else spans_of_protobuf(body)
    try:
        receive_spans(store, team, spans)
    except NOT_OURS as error:
        raise UsageError(f"A value of these spans cannot be stored: {error}.") from error


routes = RoutePlug(prefix="/v1/traces", routers=(router,))
