"""Review of a job's runs by a model, stored as labels of the rater `review:MODEL`.

reward-hack, infrastructure    1 with a claim of the kind, else 0, on every run with a review
cause-NAME                     1 on the runs of a cluster; `cause` on those of none
review                         on the job: its clusters, as a note
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hud.client import Client
from hud.errors import ContextOverflow, UsageError
from hud.review.claims import Claim, Cluster, UnreadableReply, described
from hud.review.rater_agreement import MODEL_RATER
from hud.review.reviewer import Reviewer, RunReview
from hud.trace import parse_trace

MOST_RUNS = 500
"""Runs of one review: their causes are clustered by one request."""
AT_ONCE = 8
"""Requests to the model at a time."""
RATINGS = {"reward-hack": "reward_hack", "infrastructure": "infrastructure"}
"""Kind of claim, by the label that rates every run."""
CAUSE = "cause"
LONGEST_NOTE = 4_000
LONGEST_RATER = 100
_PAGE = 1000


@dataclass(frozen=True)
class Cause:
    """The causes of one run."""

    review: RunReview
    claims: tuple[Claim, ...]


@dataclass
class JobReview:
    """Result of a review."""

    job_id: str
    rater: str
    total: int
    """Runs of the job that have ended."""
    runs: list[RunReview] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    clusters: list[Cluster] = field(default_factory=list)
    """Clusters of `causes`."""
    unclustered: str | None = None
    """Reason why the causes have no clusters; None: they have, or there is no cause."""

    @property
    def reviewed(self) -> list[RunReview]:
        """The runs with a review."""
        return [run for run in self.runs if run.problem is None]

    def claims_of(self, kind: str) -> list[tuple[RunReview, tuple[Claim, ...]]]:
        """Return the runs with claims of a kind."""
        pairs = [(run, _of_kind(run, kind)) for run in self.runs]
        return [(run, claims) for run, claims in pairs if claims]


async def review_job(
    client: Client, reviewer: Reviewer, job_id: str, limit: int | None = None
) -> JobReview:
    """Review at most `limit` runs of a job, and store the labels.

    Of more runs, those with the lowest and those with the highest rewards are taken in turn: failures have causes, and high rewards may
    be hacked. Raises `UsageError` for a job without ended runs.
    """
    most = MOST_RUNS if limit is None else min(limit, MOST_RUNS)
    runs = [run for run in await _runs(client, job_id) if run["status"] != "running"]
    if not runs:
        raise UsageError(f"The job {job_id} has no run that has ended.")
    rater = f"{MODEL_RATER}{reviewer.model.name}"[:LONGEST_RATER]
    result = JobReview(job_id, rater, len(runs))
    slots = asyncio.Semaphore(AT_ONCE)

    async def review(run: dict[str, Any]) -> RunReview:
        async with slots:
            recorded = await client.get(f"/v2/trace/{run['id']}/full")
            return await reviewer.run_review(recorded["run"], parse_trace(recorded["trace"]))

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(review(run)) for run in extremes(runs, most)]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    result.runs = [task.result() for task in tasks]
    result.causes = [Cause(run, claims) for run, claims in result.claims_of(CAUSE)]
    await _cluster(reviewer, result)
    await _label(client, result)
    return result


def extremes(runs: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return at most `most` runs: in turn one of the lowest and one of the highest rewards; unmeasured ones are the lowest."""
    ordered = sorted(
        runs, key=lambda run: float("-inf") if run["reward"] is None else run["reward"]
    )
    if len(ordered) <= most:
        return ordered
    high = most // 2
    return [*ordered[: most - high], *ordered[len(ordered) - high :]]


async def _cluster(reviewer: Reviewer, result: JobReview) -> None:
    if not result.causes:
        return
    texts = ["; ".join(claim.text for claim in cause.claims) for cause in result.causes]
    try:
        result.clusters = await reviewer.clusters(texts)
    except (UnreadableReply, ContextOverflow) as error:
        result.unclustered = str(error)


async def _label(client: Client, result: JobReview) -> None:
    names = {
        result.causes[place].review.trace_id: f"{CAUSE}-{cluster.name}"
        for cluster in result.clusters
        for place in cluster.causes
    }
    causes = {cause.review.trace_id: cause.claims for cause in result.causes}
    for run in result.reviewed:
        rated = {name: _of_kind(run, kind) for name, kind in RATINGS.items()}
        labels = {name: (float(bool(claims)), claims) for name, claims in rated.items()}
        if run.trace_id in causes:
            labels[names.get(run.trace_id, CAUSE)] = (1.0, causes[run.trace_id])
        rater = result.rater
        for name, (value, claims) in labels.items():
            rater = await _put(client, result, "run", run.trace_id, name, value, described(claims))
        await _remove_earlier(client, run.trace_id, rater, set(labels))
    lines = [
        f"{cluster.name} ({len(cluster.causes)}): {cluster.text}" for cluster in result.clusters
    ]
    note = "\n".join(lines) or result.unclustered or "No cause of a failure."
    await _put(client, result, "job", result.job_id, "review", None, note)


async def _put(
    client: Client,
    result: JobReview,
    kind: str,
    subject: str,
    name: str,
    value: float | None,
    note: str,
) -> str:
    """Store a label; returns its rater, which on a server has the key's name as well."""
    body = {
        "kind": kind,
        "subject": subject,
        "name": name,
        "value": value,
        "note": note[:LONGEST_NOTE] or None,
        "rater": result.rater,
    }
    label = await client.post("/v2/labels", body)
    return str(label["rater"])


async def _remove_earlier(client: Client, trace_id: str, rater: str, names: set[str]) -> None:
    """Remove the causes of an earlier review by this rater."""
    query = {"kind": "run", "subject": trace_id, "rater": rater, "limit": _PAGE}
    for label in (await client.get("/v2/labels", params=query))["items"]:
        name = label["name"]
        if name.partition("-")[0] == CAUSE and name not in names:
            await client.delete(f"/v2/labels/{label['id']}")


async def _runs(client: Client, job_id: str) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    while True:
        query = {"limit": _PAGE, "offset": len(runs)}
        page = await client.get(f"/v2/jobs/{job_id}/traces", params=query)
        runs += page["items"]
        if not page["items"] or len(runs) >= page["total"]:
            return runs


def _of_kind(run: RunReview, kind: str) -> tuple[Claim, ...]:
    return tuple(claim for claim in run.claims if claim.kind == kind)
