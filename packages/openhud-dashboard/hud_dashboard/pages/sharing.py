"""Read-only links to a job, and the pages behind them, which need no key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse, Response

from hud.errors import HudError, NotFoundError, PlatformError
from hud_dashboard.bundle.pages import job_page, run_page
from hud_dashboard.page import Pages, Sent, see
from hud_dashboard.rendering import refusal_page
from hud_dashboard.static_files import address
from hud_platform.access.shared_jobs import SharedJobs
from hud_platform.dependencies import LinksPart, StorePart, Who
from hud_platform.store import records

router = Pages()
open_router = APIRouter(default_response_class=Response)


def _shared(store: StorePart, links: LinksPart) -> SharedJobs:
    return SharedJobs(store, links)


Shared = Annotated[SharedJobs, Depends(_shared)]


@router.action("/jobs/{job_id}/share", "run")
def share(who: Who, shared: Shared, job_id: str, form: Sent) -> Response:
    """Make a read-only link to a job, for the form's number of `days`."""
    job = records.find_job(shared.store, who.team_id, job_id)
    days = form.get("days") or ""
    shared.share(who, job["id"], int(days[:9]) if days.isdecimal() else 0)
    return see(f"/jobs/{job['id']}#links")


@router.action("/jobs/{job_id}/links/{link_id}/revoke", "run")
def revoke(who: Who, shared: Shared, job_id: str, link_id: str) -> Response:
    """Revoke a link."""
    shared.revoke(who.team_id, link_id)
    return see(f"/jobs/{job_id}#links")


@open_router.get("/shared/{token}")
def shared_job(shared: Shared, token: str) -> Response:
    """The job of a link."""
    return _page(lambda: _job(shared, token))


@open_router.get("/shared/{token}/runs/{trace_id}")
def shared_run(shared: Shared, token: str, trace_id: str) -> Response:
    """A run of the job of a link."""
    return _page(lambda: _run(shared, token, trace_id))


def _job(shared: SharedJobs, token: str) -> str:
    team, job_id = shared.job_of(token)
    job = records.find_job(shared.store, team, job_id)
    return job_page(shared.store, job, lambda trace: f"/shared/{token}/runs/{trace}", address)


def _run(shared: SharedJobs, token: str, trace_id: str) -> str:
    team, job_id = shared.job_of(token)
    run = records.find_run(shared.store, team, trace_id)
    if run["job_id"] != job_id:
        raise NotFoundError(f"There is no trace {trace_id!r} in this job.")
    return run_page(shared.store, run, f"/shared/{token}", address)


def _page(render: Callable[[], str]) -> Response:
    """Return a page outside of the frame of the dashboard, also for an error."""
    try:
        return HTMLResponse(render(), headers={"referrer-policy": "no-referrer"})
    except HudError as error:
        status = error.status if isinstance(error, PlatformError) else type(error).status
        return refusal_page(status, str(error))
