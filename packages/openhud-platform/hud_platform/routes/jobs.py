"""Routes of recording and of jobs.

POST /v2/ingest      GET /v2/jobs      GET /v2/jobs/{id}      GET /v2/jobs/{id}/traces
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from hud_platform.dependencies import READ, RUN, Limit, Offset, StorePart, Team
from hud_platform.store import records
from hud_platform.store.ingest import ingest

router = APIRouter(prefix="/v2", tags=["jobs"], dependencies=READ)


@router.post("/ingest", dependencies=RUN)
async def ingest_journal(request: Request, store: StorePart, team: Team) -> dict[str, Any]:
    """Ingest journal lines (see `hud.trace.recording.journal`). Idempotent.
    `damaged` in the response: numbers of unreadable lines, from 0.
    """
    data = await request.body()
    ingested = await run_in_threadpool(ingest, store, data, team)
    return {"events": ingested.events, "damaged": ingested.damaged}


@router.get("/jobs")
def list_jobs(
    store: StorePart, team: Team, limit: Limit = 20, offset: Offset = 0
) -> dict[str, Any]:
    """Jobs, newest first."""
    items, total = records.jobs_page(store, team, limit, offset)
    return {"items": items, "total": total, "limit": limit, "offset": offset}


@router.get("/jobs/{job_id}")
def get_job(store: StorePart, team: Team, job_id: str) -> dict[str, Any]:
    """One job, by id or a unique start of it."""
    return records.find_job(store, team, job_id)


@router.get("/jobs/{job_id}/traces")
def list_traces(
    store: StorePart, team: Team, job_id: str, limit: Limit = 100, offset: Offset = 0
) -> dict[str, Any]:
    """The runs of a job, in the order of their starts."""
    job = records.find_job(store, team, job_id)
    items, total = records.runs_page(store, job, limit, offset)
    return {"items": items, "total": total, "limit": limit, "offset": offset}
