"""Routes of telemetry, each with and without the prefix under which clients expect them.

POST /trace/{task_run_id}/telemetry-upload      POST /sdk-events/cli      (and below /v3/api)
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import orjson
from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool

from hud.errors import UsageError
from hud.platform.access import caller, needs
from hud.platform.serving.tokens import OverloadedError
from hud.platform.store.telemetry import ingest_spans, trace_id_of

router = APIRouter()

MOST_BYTES = 512 << 20
"""Of one upload, unpacked: a span may hold a whole video."""
MOST_WAITING = 64
"""Uploads that are held in memory at a time; further ones are asked to come again."""

_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


@router.post("/trace/{task_run_id}/telemetry-upload", dependencies=[Depends(needs("run"))])
@router.post("/v3/api/trace/{task_run_id}/telemetry-upload", dependencies=[Depends(needs("run"))])
async def upload(request: Request, task_run_id: str) -> dict[str, Any]:
    """Take over spans of a trace. What is answered is durable; repetitions change nothing."""
    platform = request.app.state.platform
    if platform.uploads >= MOST_WAITING:
        raise OverloadedError("Many uploads are on their way already; send this one again.", 1.0)
    platform.uploads += 1
    try:
        body = await _body(request)
        spans = _spans(body)
        new = await run_in_threadpool(
            ingest_spans,
            platform.store,
            caller(request).team_id,
            trace_id_of(task_run_id),
            spans,
        )
    finally:
        platform.uploads -= 1
    platform.metrics.spans.inc(len(spans))
    return {"received": len(spans), "new": new}


@router.post("/sdk-events/cli")
@router.post("/v3/api/sdk-events/cli")
async def usage_events() -> dict[str, bool]:
    """Usage events of clients: heard, and dropped."""
    return {"accepted": True}


async def _body(request: Request) -> bytes:
    """Return the body, unpacked; one that is or becomes too large is refused before it fills the memory."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in (*_WINDOWS, "identity"):
        raise UsageError(f"Content-Encoding {encoding!r} is not understood; send gzip or deflate.")
    window = _WINDOWS.get(encoding)
    unpacker = zlib.decompressobj(window) if window is not None else None
    parts: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        part = chunk
        if unpacker is not None:
            try:
                part = await asyncio.to_thread(unpacker.decompress, chunk, MOST_BYTES - size + 1)
            except zlib.error as error:
                raise UsageError(f"The body is no {encoding}: {error}.") from None
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise UsageError(f"An upload holds at most {MOST_BYTES >> 20} MiB.")
    return b"".join(parts)


def _spans(body: bytes) -> list[dict[str, Any]]:
    try:
        spans = orjson.loads(body)["telemetry"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        spans = None
    if not isinstance(spans, list) or not all(isinstance(span, dict) for span in spans):
        raise UsageError('The body of an upload is {"telemetry": [span, ...]}.')
    return spans
