"""Routes of telemetry, each with and without the prefix of clients.

POST /trace/{task_run_id}/telemetry-upload      POST /sdk-events/cli      (and below /v3/api)
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Request

from hud import exact_json
from hud.errors import UsageError
from hud.trace import trace_id_of
from hud_platform.access.bodies import MANY_CONTAINERS, NESTED_DEEP
from hud_platform.dependencies import RUN, StorePart, Team, part
from hud_platform.process.metrics import Metrics
from hud_platform.store import Store
from hud_platform.store.telemetry import ingest_spans
from hud_platform.store.telemetry_admission import Intake, Upload

router = APIRouter(tags=["traces"])

MOST_BYTES = 512 << 20
"""Maximum size of one upload, unpacked: a span may contain a video."""

MOST_SPANS = 50_000
"""Maximum number of spans in one upload: a client sends hundreds at a time, and each makes a row."""

_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


@router.post("/trace/{task_run_id}/telemetry-upload", dependencies=RUN)
@router.post("/v3/api/trace/{task_run_id}/telemetry-upload", dependencies=RUN)
async def upload(
    request: Request,
    store: StorePart,
    intake: Annotated[Intake, part(lambda parts: parts.intake)],
    metrics: Annotated[Metrics, part(lambda parts: parts.metrics)],
    team: Team,
    task_run_id: str,
) -> dict[str, Any]:
    """Store spans of a trace. Durable when the response is sent; idempotent."""
    with intake.upload() as taken:
        body = await unpacked_body(request, taken)
        received, new = await anyio.to_thread.run_sync(
            _store,
            store,
            team,
            trace_id_of(task_run_id),
            body,
            limiter=intake.writers,
        )
    metrics.spans.inc(received)
    return {"received": received, "new": new}


@router.post("/sdk-events/cli")
@router.post("/v3/api/sdk-events/cli")
async def usage_events() -> dict[str, bool]:
    """Usage events of clients: accepted and discarded."""
    return {"accepted": True}


async def unpacked_body(request: Request, taken: Upload) -> bytes:
    """Return the unpacked body. Raises `UsageError` as soon as it exceeds the limit, packed or unpacked."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in (*_WINDOWS, "identity"):
        raise UsageError(f"Content-Encoding {encoding!r} is not supported; send gzip or deflate.")
    window = _WINDOWS.get(encoding)
    unpacker = zlib.decompressobj(window) if window is not None else None
    parts: list[bytes] = []
    size = packed = 0
    async for chunk in request.stream():
        part = chunk
        packed += len(chunk)  # Counted as well: packed bytes may unpack to nothing.
        if packed > MOST_BYTES:
            raise UsageError(f"An upload holds at most {MOST_BYTES >> 20} MiB.")
        if unpacker is not None and chunk:
            try:
                part = await asyncio.to_thread(unpacker.decompress, chunk, MOST_BYTES - size + 1)
            except zlib.error as error:
                raise UsageError(f"The body is not valid {encoding}: {error}.") from None
            if unpacker.unused_data:
                raise UsageError(f"The body continues after the end of its {encoding}.")
        parts.append(part)
        taken.grow(len(part))
        size += len(part)
        if size > MOST_BYTES:
            raise UsageError(f"An upload holds at most {MOST_BYTES >> 20} MiB.")
    if unpacker is not None and size and not unpacker.eof:
        raise UsageError(f"The body ends in the middle of its {encoding}.")
    return b"".join(parts)


def _store(store: Store, team: str, trace_id: str, body: bytes) -> tuple[int, int]:
    """Return the number of received spans, and of new ones."""
    spans = _spans(body)
    return len(spans), ingest_spans(store, team, trace_id, spans)


def _spans(body: bytes) -> list[dict[str, Any]]:
    if exact_json.has_many_containers(body):
        raise UsageError(MANY_CONTAINERS)
    if exact_json.is_nested_deep(body):
        raise UsageError(NESTED_DEEP)
    try:
        spans = exact_json.loads(body)["telemetry"]
    except (exact_json.JSONDecodeError, KeyError, TypeError):
        spans = None
    if not isinstance(spans, list) or not all(isinstance(span, dict) for span in spans):
        raise UsageError('The body of an upload is {"telemetry": [span, ...]}.')
    if len(spans) > MOST_SPANS:
        raise UsageError(f"An upload holds at most {MOST_SPANS:,} spans. Send several.")
    return spans
