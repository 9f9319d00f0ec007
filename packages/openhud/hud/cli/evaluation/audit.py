"""`hud audit`: the reward that tasks give to agents that do none of the work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from hud.cli.main import INTERRUPTED

if TYPE_CHECKING:
    from hud.audit import Audit, Solution
    from hud.eval import Taskset
    from hud.eval.results.run_summary import RunSummary

SECONDS = click.FloatRange(min=0, min_open=True)


@click.command(
    name="audit",
    epilog="Exit code 1: an exploit earned more than a task's floor, or nothing could be measured. A task declares the chance level of a choice as "
    'columns={"chance": 0.5}, which is then its floor. Exploits call every tool: audit environments that may break.',
)
@click.argument("source", metavar="[TASKS]", required=False)
@click.option("--benchmark", metavar="NAME", help="Audit a benchmark in place of TASKS.")
@click.option(
    "--split", type=click.Choice(["train", "held-out"]), help="Its tasks.  [default: held-out]"
)
@click.option(
    "--solver",
    metavar="AGENT",
    help="Agent that does the work, as in `hud eval`: shows correct answers.  [default: a benchmark's oracle]",
)
@click.option(
    "--job",
    metavar="JOB",
    help="Recorded runs of a model: correct answers, and tasks without signal for it.",
)
@click.option("--tasks", "sample", type=click.IntRange(min=1), help="Audit N tasks, evenly spaced.")
@click.option("--task-ids", help="Audit only these: slugs or positions (from 0), comma-separated.")
@click.option("--exploits", metavar="NAMES", help="Play only these exploits, comma-separated.")
@click.option(
    "--floor",
    type=click.FloatRange(0),
    default=0.05,
    show_default=True,
    help="Reward without the work that a task may give.",
)
@click.option("--max-concurrent", type=click.IntRange(min=1), help="Runs at a time.  [default: 32]")
@click.option(
    "--rollout-timeout", type=SECONDS, default=120.0, show_default=True, help="Seconds for one run."
)
@click.option(
    "--runtime",
    metavar="KIND",
    help="local, fork, subprocess, or tcp://host:port.  [default: fork for a Python source]",
)
@click.option("--top", metavar="JOB", help="Show the runs of a job with the highest rewards.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    help="Tasks, or runs, to show.  [default: 20; with --top, 3]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    source: str | None,
    benchmark: str | None,
    split: str | None,
    solver: str | None,
    job: str | None,
    sample: int | None,
    task_ids: str | None,
    exploits: str | None,
    floor: float,
    max_concurrent: int | None,
    rollout_timeout: float,
    runtime: str | None,
    top: str | None,
    limit: int | None,
    as_json: bool,
) -> int:
    """Play agents that do none of the work on TASKS, and show the highest reward of each task."""
    from hud.audit import Audit
    from hud.cli.evaluation.audit_report import show_top
    from hud.cli.evaluation.eval import provider
    from hud.cli.evaluation.player import player
    from hud.cli.evaluation.task_source import chosen, task_source

    if top is not None:
        if source is not None or benchmark is not None:
            raise click.UsageError("--top JOB stands for TASKS.")
        asyncio.run(show_top(top, limit or 3, as_json))
        return 0
    source_of_tasks = task_source(source, benchmark, split)
    tasks = _sampled(chosen(source_of_tasks.tasks, task_ids, True), sample)
    who = None if solver is None else player(solver, None, {}, oracle=source_of_tasks.oracle)
    if who is None and source_of_tasks.has_oracle and source_of_tasks.oracle is not None:
        who = source_of_tasks.oracle()
    runs, solutions = asyncio.run(_recorded(job)) if job is not None else ([], {})
    audit = Audit(
        tasks,
        exploits=_named(exploits),
        floor=floor,
        solutions=solutions,
        runs=runs,
        runtime=provider(runtime, source_of_tasks.path),
        max_concurrent=max_concurrent,
        rollout_timeout=rollout_timeout,
    )
    return asyncio.run(_play(audit, who, limit or 20, as_json))


async def _play(audit: Audit, solver: Any, limit: int, as_json: bool) -> int:
    from hud.cli.evaluation.audit_report import PhaseRows, print_report
    from hud.cli.output import print_json
    from hud.eval.rollouts import prepare
    from hud.eval.runtimes.rollout_runtime import as_runtime

    if solver is not None:
        await prepare(solver)
    if not as_json:
        audit.on_phase = PhaseRows(audit).ended
    try:
        with audit.stop.on_interrupt():
            await audit.play(solver)
    finally:
        await as_runtime(audit.runtime).aclose()
        if solver is not None:
            await solver.aclose()
    report = audit.report()
    if as_json:
        print_json(report.as_dict())
    else:
        print_report(report, limit)
    if not report.complete:
        return INTERRUPTED
    nothing = report.unmeasured and not any(task.rewards for task in report.tasks)
    return 1 if report.above or nothing else 0


def _sampled(tasks: Taskset, most: int | None) -> Taskset:
    """Return at most `most` tasks, evenly spaced."""
    if most is None or most >= len(tasks):
        return tasks
    every = len(tasks) / most
    return tasks.filter([tasks[int(place * every)].slug for place in range(most)])


def _named(names: str | None) -> Any:
    from hud.audit import EXPLOITS
    from hud.errors import UsageError

    exploits = {exploit.name: exploit for exploit in EXPLOITS}
    if names is None:
        return EXPLOITS
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in exploits]
    if unknown or not wanted:
        raise UsageError(
            f"There is no exploit {', '.join(unknown) or names!r}; there are {', '.join(exploits)}."
        )
    return [exploit for name, exploit in exploits.items() if name in wanted]


async def _recorded(reference: str) -> tuple[list[RunSummary], dict[str, Solution]]:
    """Return the runs of a job, and a solution of each task that one of them solved."""
    from hud.audit import SOLVED, Solution
    from hud.cli.platform_requests import pages, recorded_job
    from hud.client import connect
    from hud.eval.results.run_summary import RunSummary
    from hud.trace import parse_trace

    job = (await recorded_job(reference))["id"]
    runs: list[RunSummary] = []
    solved: dict[str, str] = {}
    async for run in pages(f"/v2/jobs/{job}/traces"):
        slug = run["slug"] or "(no task)"
        fields = (slug, run["reward"], run["group_id"], run["attempt"])
        runs.append(RunSummary(*fields, model=run["model"]))
        if (run["reward"] or 0.0) >= SOLVED:
            solved.setdefault(slug, run["id"])
    solutions = {}
    for slug, trace_id in solved.items():
        recorded = await connect().get(f"/v2/trace/{trace_id}/full")
        solutions[slug] = Solution.of(parse_trace(recorded["trace"]))
    return runs, solutions
