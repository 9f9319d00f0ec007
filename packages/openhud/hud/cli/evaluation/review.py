"""`hud review`: a model reads the runs of a job, and labels them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from hud.review.claims import Claim
    from hud.review.job_review import JobReview
    from hud.review.reviewer import Reviewer, RunReview

MANY_PAID_RUNS = 50
"""Number of runs with a provider's model from which the command asks for confirmation."""


@click.command(name="review", epilog="Its agreement with people: hud label --agreement reward-hack")
@click.argument("job")
@click.option(
    "--model",
    required=True,
    help="Reviewer: a model's slug, http://HOST/v1 of a server, or path.py:policy.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 500),
    default=50,
    show_default=True,
    help="Runs to review: of more, those with the lowest and the highest rewards.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before many paid requests.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(job: str, model: str, limit: int, yes: bool, as_json: bool) -> None:
    """Have a model review the runs of JOB: causes of failures in clusters, suspected reward hacks, faults of infrastructure.

    Each claim names the steps that it rests on. Results are labels of the rater review:MODEL. JOB is an id, the start of one, or latest.
    """
    from hud.cli.evaluation.player import is_paid, player
    from hud.cli.platform_requests import run

    agent = player(None, model, {})
    if is_paid(None, model) and not yes and limit >= MANY_PAID_RUNS:
        click.confirm(f"Review up to {limit} runs with {model}?", abort=True, err=True)
    run(_review(job, agent, limit, as_json))


async def _review(reference: str, agent: Any, limit: int, as_json: bool) -> None:
    from hud.cli.output import print_json
    from hud.cli.platform_requests import recorded_job
    from hud.client import connect
    from hud.review.job_review import review_job
    from hud.review.reviewer import Reviewer

    job = await recorded_job(reference)
    try:
        reviewer = await Reviewer.of_agent(agent)
        review = await review_job(connect(), reviewer, job["id"], limit)
    finally:
        await agent.aclose()
    if as_json:
        print_json(_as_dict(review, reviewer))
    else:
        _print(review, reviewer)


def _as_dict(review: JobReview, reviewer: Reviewer) -> dict[str, Any]:
    clusters = [
        {
            "name": cluster.name,
            "text": cluster.text,
            "runs": [review.causes[place].review.trace_id for place in cluster.causes],
        }
        for cluster in review.clusters
    ]
    runs = [
        {
            "trace_id": run.trace_id,
            "slug": run.slug,
            "claims": [vars(claim) for claim in run.claims],
            "dropped_claims": run.dropped,
            "steps_not_shown": run.shown.left_out,
            "problem": run.problem,
        }
        for run in review.runs
    ]
    usage = reviewer.usage.model_dump()
    return {
        "job": review.job_id,
        "rater": review.rater,
        "ended_runs": review.total,
        "clusters": clusters,
        "unclustered": review.unclustered,
        "runs": runs,
        "usage": usage,
    }


def _print(review: JobReview, reviewer: Reviewer) -> None:
    from hud.cli.output import console, count
    from hud.review.job_review import RATINGS

    out = console()
    out.print(f"{len(review.reviewed)} of {count(review.total, 'run')}, by {review.rater}", markup=False)  # fmt: skip
    clustered = {place for cluster in review.clusters for place in cluster.causes}
    for cluster in review.clusters:
        causes = [review.causes[place] for place in cluster.causes]
        _section(cluster.name, cluster.text, [(cause.review, cause.claims) for cause in causes])
    single = [cause for place, cause in enumerate(review.causes) if place not in clustered]
    _section("cause", review.unclustered or "", [(cause.review, cause.claims) for cause in single])
    for name, kind in RATINGS.items():
        _section(name, "", review.claims_of(kind))
    out.print()
    dropped = sum(run.dropped for run in review.runs)
    if dropped:
        out.print(f"Dropped {count(dropped, 'claim')} that rest on no step, or on one that was not shown.")  # fmt: skip
    shortened = [run.shown.left_out for run in review.runs if run.shown.left_out]
    if shortened:
        out.print(f"Left out {count(sum(shortened), 'step')} in the middle of {count(len(shortened), 'long run')}.")  # fmt: skip
    for run in review.runs:
        if run.problem is not None:
            out.print(f"No review of {run.trace_id[:12]}: {run.problem}", markup=False)
    usage = reviewer.usage
    cost = "" if usage.cost_usd is None else f", ${usage.cost_usd:.4f}"
    out.print(f"{count(usage.llm_call_count, 'request')}, {usage.prompt_tokens:,} tokens in, {usage.completion_tokens:,} out{cost}")  # fmt: skip


def _section(name: str, text: str, runs: list[tuple[RunReview, tuple[Claim, ...]]]) -> None:
    """Print the claims of one cluster or kind, each with what its steps hold, in quotation marks."""
    from hud.cli.output import console, count, fitted, wrapped
    from hud.review.claims import steps_of

    if not runs:
        return
    out = console()
    out.print()
    out.print(f"{name}  {count(len(runs), 'run')}", style="bold", markup=False)
    for line in wrapped(text, 2):
        out.print(line, markup=False)
    for run, claims in runs:
        out.print(f"  {run.trace_id[:12]}  {run.slug or ''}", markup=False)
        for claim in claims:
            for line in wrapped(f"{claim.text} ({steps_of(claim)})", 4):
                out.print(line, markup=False)
            for step in claim.steps:
                quote = " ".join(run.shown.quotes[step].split())
                line = f'      step {step}: "{quote}"'
                out.print(fitted(line, max(40, out.width)), markup=False)
