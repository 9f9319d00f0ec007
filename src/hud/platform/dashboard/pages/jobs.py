"""Jobs, and one job."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from hud.platform.access import caller
from hud.platform.dashboard.page import Pages, see
from hud.platform.dashboard.rendering import page
from hud.platform.store import reading

router = Pages()
PER_PAGE = 50


@router.get("/")
def first_page() -> Response:
    """The first page is that of the jobs."""
    return see("/jobs")


@router.page("/jobs")
def jobs(request: Request, offset: Annotated[int, Query(ge=0, le=2**31)] = 0) -> Response:
    """The jobs, newest first."""
    store, team = request.app.state.platform.store, caller(request).team_id
    items, total = reading.jobs_page(store, team, PER_PAGE, offset)
    data = {"items": items, "total": total, "limit": PER_PAGE, "offset": offset}
    return page(request, "jobs.html", data)


@router.page("/jobs/{job_id}")
def job(request: Request, job_id: str, offset: Annotated[int, Query(ge=0)] = 0) -> Response:
    """One job."""
    store, team = request.app.state.platform.store, caller(request).team_id
    found = reading.find_job(store, team, job_id)
    items, total = reading.runs_page(store, found, PER_PAGE, offset)
    runs = [{name: run[name] for name in ("id", "slug", "status", "reward")} for run in items]
    data = {"job": found, "runs": runs, "total": total, "limit": PER_PAGE, "offset": offset}
    return page(request, "job.html", data)
