"""The list of jobs, and what is done with jobs."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from fastapi import Response

from hud.platform.dashboard.events import Following, Revision
from hud.platform.dashboard.page import Data, Offset, Pages, paged, see
from hud.platform.dependencies import StorePart, Team
from hud.platform.store import job_listing
from hud.platform.store.job_listing import JobFilter

router = Pages()
PER_PAGE = 25


@router.get("/")
def first_page() -> Response:
    """The first page is that of the jobs."""
    return see("/jobs")


@router.page("/jobs", "jobs.html")
def jobs(
    store: StorePart,
    team: Team,
    taskset: str | None = None,
    model: str | None = None,
    checkpoint: str | None = None,
    status: str | None = None,
    since: str | None = None,
    until: str | None = None,
    text: str | None = None,
    sort: str = "-started",
    offset: Offset = 0,
) -> Data:
    """The jobs, newest first unless said otherwise."""
    which = JobFilter(
        taskset=taskset or None,
        model=model or None,
        checkpoint=checkpoint or None,
        status=status or None,
        since=_day(since),
        until=_day(until, after=1),
        text=(text or "").strip() or None,
    )
    items, total = job_listing.list_jobs(store, team, which, sort, PER_PAGE, offset)
    ids = [item["id"] for item in items]
    return {
        "items": items,
        **paged(total, PER_PAGE, offset),
        "sort": sort,
        "filtered": which != JobFilter(),
        "choices": job_listing.choices(store, team, which.model),
        "revision": job_listing.jobs_revision(store, team, ids),
    }


@router.events("/events/jobs")
def jobs_events(store: StorePart, team: Team, ids: str = "") -> Following:
    """Tell when a job is added, or one of those that are looked at goes on."""
    shown = sorted(ids.split(",")[:PER_PAGE])

    def read() -> Revision:
        return Revision(job_listing.jobs_revision(store, team, shown))

    return ("jobs", team, *shown), read


def _day(text: str | None, after: int = 0) -> datetime | None:
    """The beginning of a day in UTC, or of one `after` it; what is no day filters nothing."""
    try:
        return datetime.combine(
            date.fromisoformat(text or "") + timedelta(days=after), time(), tzinfo=UTC
        )
    except (ValueError, OverflowError):
        return None
