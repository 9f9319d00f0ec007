"""Page that compares jobs, paired by task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Query

from hud.errors import UsageError
from hud.eval.results.paired_differences import SIGNIFICANCE, Pairing, pair, rewards_by_attempt
from hud.eval.results.promotion_gate import evidence
from hud.eval.results.task_families import few_families
from hud_dashboard.page import Data, Pages
from hud_dashboard.queries.job_listing import checkpoint_steps
from hud_platform.dependencies import StorePart, Team
from hud_platform.store import records
from hud_platform.store.checkpoint_rewards import MeasuredRun, typical
from hud_platform.store.job_runs import job_runs, summary
from hud_platform.store.task_labels import task_labels

router = Pages()
MOST_JOBS = 6
_ORDERS = ("changed", "difference", "-difference", "slug", "-slug")


@router.page("/jobs/compare", "comparison.html")
def compare(
    store: StorePart,
    team: Team,
    job: Annotated[list[str], Query(default_factory=list)],
    sort: str = "changed",
    base: str | None = None,
) -> Data:
    """Compare two or more jobs with the first of them."""
    wanted = list(dict.fromkeys(job))
    if not 2 <= len(wanted) <= MOST_JOBS:
        raise UsageError(f"Choose 2 to {MOST_JOBS} jobs to compare.")
    if sort not in _ORDERS:
        raise UsageError(f"Tasks cannot be sorted by {sort!r}; there are {', '.join(_ORDERS)}.")
    jobs = [records.find_job(store, team, job_id) for job_id in wanted]
    # Base of the comparison: `base`, or else the earliest checkpoint, or else the oldest job.
    steps = checkpoint_steps(store, team, [row["id"] for row in jobs]) or {}
    jobs.sort(key=lambda row: (row["id"] != base, steps.get(row["id"], 0), row["created_at"]))
    runs = [job_runs(store, team, row) for row in jobs]
    rewards = [rewards_by_attempt(summary(run) for run in played) for played in runs]
    pairings = [pair(rewards[0], other) for other in rewards[1:]]
    tasks = _tasks(pairings, [_transcripts(played) for played in runs], sort)
    labels = task_labels(store, team, {task["slug"]: task["trace"] for task in tasks})
    return {
        "jobs": jobs,
        "pairings": [_shown(pairing) for pairing in pairings],
        "tasks": [{**task, "label": labels[task["slug"]]} for task in tasks],
        "sort": sort,
    }


def _shown(pairing: Pairing) -> dict[str, Any]:
    verdicts = Counter(change.verdict for change in pairing.changes)
    counts, overall = pairing.counts, pairing.overall
    return {
        "tasks": len(pairing.changes),
        "before": pairing.before,
        "after": pairing.after,
        "low": None if overall is None else overall.low,
        "high": None if overall is None else overall.high,
        "verdict": pairing.verdict,
        "evidence": None if overall is None else evidence(overall),
        "note": few_families(change.slug for change in pairing.changes),
        "better": counts["better"],
        "worse": counts["worse"],
        "same": counts["same"],
        "beyond_chance": {"better": verdicts["better"], "worse": verdicts["worse"]},
        "by_chance": len(pairing.changes) * SIGNIFICANCE,
        "only_before": list(pairing.only_before),
        "only_after": list(pairing.only_after),
    }


def _transcripts(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the trace id of each task's typical run."""
    measured: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        if run["reward"] is not None:
            measured.setdefault(run["slug"], []).append(MeasuredRun(run["trace_id"], run["reward"]))
    return {slug: typical(runs_of_task).trace_id for slug, runs_of_task in measured.items()}


def _tasks(
    pairings: list[Pairing], traces: list[dict[str, str]], sort: str
) -> list[dict[str, Any]]:
    """Return one row for each task of the first job that another job shares, with the changes in the order of the jobs.
    `traces`: for each job, the trace id of a transcript by task.
    """
    rows: dict[str, dict[str, Any]] = {}
    for number, pairing in enumerate(pairings):
        for change in pairing.changes:
            row = rows.setdefault(
                change.slug,
                {
                    "slug": change.slug,
                    "before": change.before,
                    "trace": traces[0][change.slug],
                    "changes": [None] * len(pairings),
                },
            )
            shown = {
                **asdict(change),
                "difference": change.difference,
                "direction": change.direction,
                "verdict": change.verdict,
                "trace": traces[number + 1][change.slug],
            }
            row["changes"][number] = shown
    keys: dict[str, Callable[[dict[str, Any]], Any]] = {
        "changed": lambda row: -abs(_last_difference(row)),  # Tasks that scored the same are last.
        "difference": _last_difference,
        "slug": lambda row: str(row["slug"]),
    }
    return sorted(rows.values(), key=keys[sort.removeprefix("-")], reverse=sort.startswith("-"))


def _last_difference(row: dict[str, Any]) -> float:
    """Return the difference of the last job with the task, which is usually the newest."""
    return next(
        (float(change["difference"]) for change in reversed(row["changes"]) if change is not None),
        0.0,
    )
