"""Jobs side by side, paired by task."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Query, Request, Response

from hud.errors import UsageError
from hud.eval.pairing import LEVEL, Pairing, pair
from hud.platform.access import caller
from hud.platform.dashboard.page import Pages
from hud.platform.dashboard.rendering import page
from hud.platform.store import reading
from hud.platform.store.job_runs import job_runs, summary

router = Pages()
MOST_JOBS = 6
_ORDERS = ("difference", "-difference", "slug")


@router.page("/jobs/compare")
def compare(
    request: Request,
    job: Annotated[list[str], Query(default_factory=list)],
    sort: str = "difference",
) -> Response:
    """Two jobs or more: each is compared with the first."""
    store, team = request.app.state.platform.store, caller(request).team_id
    wanted = list(dict.fromkeys(job))
    if not 2 <= len(wanted) <= MOST_JOBS:
        raise UsageError(f"Choose between two and {MOST_JOBS} jobs to compare.")
    if sort not in _ORDERS:
        raise UsageError(f"Tasks cannot be sorted by {sort!r}; there are {', '.join(_ORDERS)}.")
    # The oldest is what the others are compared with, unless the address says otherwise by `base`.
    found = [reading.find_job(store, team, one) for one in wanted]
    base = request.query_params.get("base")
    found.sort(key=lambda one: (one["id"] != base, one["created_at"]))
    runs = [[summary(run) for run in job_runs(store, team, one)] for one in found]
    pairings = [pair(runs[0], other) for other in runs[1:]]
    data: dict[str, Any] = {
        "jobs": found,
        "pairings": [_shown(pairing) for pairing in pairings],
        "tasks": _tasks(pairings, sort),
        "sort": sort,
    }
    return page(request, "comparison.html", data)


def _shown(pairing: Pairing) -> dict[str, Any]:
    verdicts = Counter(change.verdict for change in pairing.changes)
    return {
        "tasks": len(pairing.changes),
        "before": pairing.before,
        "after": pairing.after,
        "low": None if pairing.difference is None else pairing.difference.low,
        "high": None if pairing.difference is None else pairing.difference.high,
        "verdict": pairing.verdict,
        "better": verdicts["better"],
        "worse": verdicts["worse"],
        "noise": verdicts["noise"],
        "by_chance": len(pairing.changes) * LEVEL,
        "only_before": list(pairing.only_before),
        "only_after": list(pairing.only_after),
    }


def _tasks(pairings: list[Pairing], sort: str) -> list[dict[str, Any]]:
    """One row for each task of the first job that another has, too: its changes, in the order of the jobs."""
    found: dict[str, dict[str, Any]] = {}
    for number, pairing in enumerate(pairings):
        for change in pairing.changes:
            row = found.setdefault(
                change.slug,
                {"slug": change.slug, "before": change.before, "changes": [None] * len(pairings)},
            )
            shown = {**asdict(change), "difference": change.difference, "verdict": change.verdict}
            row["changes"][number] = shown
    rows = list(found.values())
    if sort == "slug":
        return sorted(rows, key=lambda row: str(row["slug"]))
    downwards = sort.startswith("-")
    return sorted(rows, key=lambda row: _last_difference(row), reverse=downwards)


def _last_difference(row: dict[str, Any]) -> float:
    """Of the last job that has the task: the one that one wants to know about."""
    return next(
        (float(change["difference"]) for change in reversed(row["changes"]) if change is not None),
        0.0,
    )
