"""List of jobs."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from fastapi import Response

from hud_dashboard.events import Following, Revision
from hud_dashboard.page import Data, Offset, Pages, paged, see
from hud_dashboard.queries import job_listing
from hud_dashboard.queries.job_listing import JobFilter
from hud_dashboard.queries.saved_views import saved_views
from hud_platform.dependencies import StorePart, Team
from hud_platform.training.training_jobs import TrainingJobs

router = Pages()
PER_PAGE = 25


@router.get("/")
def first_page() -> Response:
    """Redirect to the list of jobs."""
    return see("/jobs")


@router.page("/jobs", "jobs.html", csv=True)
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
    purpose: str | None = None,
    under: str | None = None,
    sort: str = "-started",
    offset: Offset = 0,
) -> Data:
    """The jobs; default order: newest first."""
    which = JobFilter(
        taskset=taskset or None,
        model=model or None,
        checkpoint=checkpoint or None,
        status=status or None,
        since=_day(since),
        until=_day(until, after=1),
        text=(text or "").strip() or None,
        purpose=purpose or None,
        under=under or None,
    )
    items, total = job_listing.list_jobs(store, team, which, sort, PER_PAGE, offset)
    ids = [item["id"] for item in items]
    belongings = TrainingJobs(store, team).folded_under(ids)
    for item in items:
        item |= belongings.get(item["id"], {"run": None, "folded": {}})
    return {
        "items": items,
        **paged(total, PER_PAGE, offset),
        "sort": sort,
        "filtered": which != JobFilter(),
        "views": saved_views(store, team, "/jobs"),
        "folded": job_listing.folded_jobs(store, team)
        if which.purpose is None and which.under is None
        else {},
        "choices": job_listing.choices(store, team, which.model),
        "revision": job_listing.jobs_revision(store, team, ids),
    }


@router.events("/events/jobs")
def jobs_events(store: StorePart, team: Team, ids: str = "") -> Following:
    """Event stream of new jobs and of changes in the listed ones."""
    shown = sorted(ids.split(",")[:PER_PAGE])

    def read() -> Revision:
        return Revision(job_listing.jobs_revision(store, team, shown))

    return ("jobs", team, *shown), read


def _day(text: str | None, after: int = 0) -> datetime | None:
    """Return the start of a day in UTC, plus `after` days; None for an invalid date."""
    try:
        return datetime.combine(
            date.fromisoformat(text or "") + timedelta(days=after), time(), tzinfo=UTC
        )
    except (ValueError, OverflowError):
        return None
