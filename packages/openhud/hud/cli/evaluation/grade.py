"""`hud grade`: the recorded runs of a job under a changed grader, as a new job."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hud.cli.evaluation.judge_options import JudgeOptions, judge_options
from hud.cli.main import INTERRUPTED

if TYPE_CHECKING:
    from hud.eval import Job
    from hud.eval.regrading.regraded_job import Regrading
    from hud.review.judge_method import Method

MOST_CHANGES = 20
"""Changed rewards that are printed."""


@click.command(name="grade", epilog="More: docs/outcomes.md")
@click.argument("job")
@click.option(
    "--with",
    "source",
    metavar="TASKS",
    required=True,
    help="Tasks with the changed grader: .py, .json, .jsonl, a folder, or the platform's taskset.",
)
@click.option(
    "--answers-only",
    is_flag=True,
    help="The grader reads the answer and the trace alone: repeat no tool call.",
)
@judge_options
@click.option("--max-concurrent", type=click.IntRange(min=1), help="Runs at a time.  [default: 32]")
@click.option(
    "--runtime",
    metavar="KIND",
    help="local, fork, subprocess, or tcp://host:port.  [default: fork for a Python source]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    job: str,
    source: str,
    answers_only: bool,
    judge: str | None,
    judge_by: Method | None,
    criteria: tuple[str, ...],
    judge_share: float | None,
    max_concurrent: int | None,
    runtime: str | None,
    as_json: bool,
) -> int:
    """Grade the recorded runs of JOB again, into a new job; rewards of JOB stay.

    No model plays: the environment comes up, the recorded tool calls are repeated, and the recorded answer is graded. A run whose prompt or
    results are now others is not graded. JOB is an id, the start of one, or latest.
    """
    from hud.cli.evaluation.eval import provider
    from hud.cli.evaluation.task_source import chosen, task_source
    from hud.cli.platform_requests import run

    tasks = chosen(task_source(source, None, None).tasks, None, everything=True)
    where = provider(runtime, Path(source))
    judging = JudgeOptions.of(judge, judge_by, criteria, judge_share)
    return run(_grade(job, tasks, where, max_concurrent, not answers_only, judging, as_json))


async def _grade(
    reference: str,
    tasks: Any,
    where: Any,
    max_concurrent: int | None,
    repeat_calls: bool,
    judging: JudgeOptions | None,
    as_json: bool,
) -> int:
    from hud.cli.evaluation.progress import SpokenStop
    from hud.cli.output import console, print_json
    from hud.cli.platform_requests import pages, recorded_job
    from hud.client import connect
    from hud.eval.regrading.regraded_job import Regrading
    from hud.eval.runtimes.rollout_runtime import as_runtime

    source = await recorded_job(reference)
    runs = [run async for run in pages(f"/v2/jobs/{source['id']}/traces")]
    plan = Regrading.of(source, runs, tasks)
    stop = SpokenStop()
    sizes = Counter(item.group_id for item in plan.planned)
    judge = None
    if judging is not None:
        judge = await judging.open(max(sizes.values()), len(sizes), quiet=as_json)
    try:
        with stop.on_interrupt():
            job = await plan.play(
                connect(),
                where,
                repeat_calls=repeat_calls,
                max_concurrent=max_concurrent,
                stop=stop,
                judge=judge,
            )
    finally:
        await as_runtime(where).aclose()
        if judge is not None:
            await judge.aclose()
    if as_json:
        print_json(_as_dict(plan, job))
    else:
        _print(plan, job)
        for line in [] if judge is None else [*judge.lines(), *await _people(plan, job)]:
            console().print(line, markup=False)
    if job.interrupted:
        return INTERRUPTED
    return 0 if job.reward is not None else 1


async def _people(plan: Regrading, job: Job) -> list[str]:
    """Return the agreement of a judge's rewards with each label that people gave to two or more of the runs."""
    from hud.cli.output import number
    from hud.cli.platform_requests import pages
    from hud.review.rater_agreement import MODEL_RATER, alpha

    rewards = {plan.before(run).trace_id: run.reward for run in job.runs if run.reward is not None}
    people: dict[str, dict[str, list[float]]] = {}
    async for label in pages("/v2/labels"):
        by_person = label["value"] is not None and not label["rater"].startswith(MODEL_RATER)
        if by_person and label["kind"] == "run" and label["subject_id"] in rewards:
            values = people.setdefault(label["name"], {})
            values.setdefault(label["subject_id"], []).append(label["value"])
    lines = []
    for name, values in sorted(people.items()):
        if len(values) > 1:
            means = {run: sum(own) / len(own) for run, own in values.items()}
            shared = {run: rewards[run] for run in means}
            agreement = number(alpha([means, shared]))
            lines.append(
                f"people's {name}: Krippendorff's alpha {agreement} over {len(means):,} runs"
            )
    return lines


def _as_dict(plan: Regrading, job: Job) -> dict[str, Any]:
    runs = [
        {
            "trace_id": run.trace_id,
            "graded_from": plan.before(run).trace_id,
            "slug": run.slug,
            "before": plan.before(run).reward,
            "reward": run.reward,
            "error": run.error if run.reward is None else None,
        }
        for run in job.runs
    ]
    return {
        "job_id": job.id,
        "graded_from": plan.source["id"],
        "interrupted": job.interrupted,
        "reward": job.reward,
        "left_out": plan.left_out,
        "runs": runs,
    }


def _print(plan: Regrading, job: Job) -> None:
    from hud.cli.output import console, count, lines_of, number, wrapped

    out = console()
    graded = [run for run in job.runs if run.reward is not None]
    changed = [run for run in graded if run.reward != plan.before(run).reward]
    total = len(plan.planned) + plan.left_out.total()
    out.print(f"{len(graded)} of {count(total, 'run')} of {plan.source['id'][:12]}, graded again: {count(len(changed), 'changed reward')}")  # fmt: skip
    before = [plan.before(run).reward for run in graded]
    measured = [reward for reward in before if reward is not None]
    mean = sum(measured) / len(measured) if measured else None
    out.print(f"reward  {number(mean)} → {number(job.reward)}")
    rows = [
        [run.task.label, number(plan.before(run).reward), number(run.reward), run.trace_id[:12]]
        for run in changed[:MOST_CHANGES]
    ]
    names = ["task", "before", "now", "run"]
    for line in lines_of(names, rows, left=["task", "run"], shrinks="task") if rows else []:
        out.print(line, markup=False)
    if len(changed) > MOST_CHANGES:
        out.print(f"… and {len(changed) - MOST_CHANGES:,} more")
    reasons = Counter(run.error or "not measured" for run in job.runs if run.reward is None)
    for reason, runs in [*plan.left_out.items(), *reasons.most_common()]:
        for line in wrapped(f"{count(runs, 'run')}: {reason}", 0):
            out.print(line, markup=False)
    out.print(f"hud jobs {job.id[:12]}")
