"""`hud signal`: training signal of each task of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from hud.eval.results.run_summary import RunSummary
    from hud.eval.results.task_signal import TaskSignal


@click.command(
    name="signal", epilog="Then train on the tasks of stage `now`: hud train MODEL TASKS"
)
@click.argument("job")
@click.option(
    "--group", type=click.IntRange(min=2), help="Group size.  [default: the job's largest]"
)
@click.option(
    "--pass-mark",
    type=float,
    default=1.0,
    show_default=True,
    help="Minimum reward of a passed run.",
)
@click.option(
    "--against",
    metavar="JOB",
    multiple=True,
    help="Job of another model on the same tasks, for its mean rewards. Repeatable.",
)
@click.option("-n", "--limit", type=click.IntRange(1), default=40, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    job: str,
    group: int | None,
    pass_mark: float,
    against: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """Show the training signal of each task of JOB for its policy, and propose a curriculum."""
    from hud.cli.platform_requests import run

    run(_show(job, group, pass_mark, against, limit, as_json))


async def _show(
    reference: str,
    group: int | None,
    pass_mark: float,
    against: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    from hud.cli.output import console, lines_of, number, print_json, some
    from hud.environment.templates.task import task_label
    from hud.environment.templates.task_identity import equal_args_of
    from hud.eval.results.task_signal import job_signal

    job, runs, tasks = await _played(reference)
    signal = job_signal(runs, tasks, k=group, pass_mark=pass_mark)
    others = dict([await _difficulty(other_job) for other_job in against])
    if as_json:
        print_json({"job": job, **signal.as_dict(), "against": others})
        return
    out = console()
    names = [
        "task",
        "runs",
        "mean",
        "sd",
        "pass@1",
        f"pass@{signal.k}",
        "no signal",
        "weight",
        "stage",
        *others,
    ]
    labels = {
        slug: task_label(
            slug,
            row.get("id") or "",
            row.get("args") or {},
            equal_args_of(row),
            console().width // 4,
        )
        for slug, row in tasks.items()
    }
    rows = [
        [*_cells(task, labels), *(number(means.get(task.slug)) for means in others.values())]
        for task in signal.tasks[:limit]
    ]
    for line in lines_of(names, rows, left=["task", "stage"], shrinks="task"):
        out.print(line, markup=False)
    if len(signal.tasks) > limit:
        out.print(f"{len(signal.tasks) - limit:,} more tasks; --limit shows them.")
    out.print(f"{signal.without_signal:.0%} of the recorded groups have no signal.")
    advice = {
        "now": "learn from these now",
        "later": "give no signal yet",
        "done": "pass nearly always already",
        "duplicate": "repeat another task: leave them out",
    }
    out.print("Proposed curriculum:")
    for stage, slugs in signal.curriculum.items():
        if slugs:
            out.print(
                f"  {stage:<9} {len(slugs):>5}  {advice[stage]}: {some([labels[slug] for slug in slugs])}",
                markup=False,
            )


async def _played(reference: str) -> tuple[str, list[RunSummary], dict[str, dict[str, Any]]]:
    """Return a job's id, its runs, and the rows of its tasks by slug."""
    from hud.cli.platform_requests import pages, recorded_job
    from hud.eval.results.run_summary import RunSummary

    job = (await recorded_job(reference))["id"]
    runs: list[RunSummary] = []
    tasks: dict[str, dict[str, Any]] = {}
    async for run in pages(f"/v2/jobs/{job}/traces"):
        slug = run["slug"] or "(no task)"
        fields = (slug, run["reward"], run["group_id"], run["attempt"])
        by_turn = (run["grade"] or {}).get("turn_rewards")
        turn_rewards = None if by_turn is None else tuple(by_turn)
        runs.append(RunSummary(*fields, model=run["model"], turn_rewards=turn_rewards))
        tasks.setdefault(slug, run["task"] or {})
    return job, runs, tasks


async def _difficulty(reference: str) -> tuple[str, dict[str, float]]:
    """Return the agent of a job, and the mean reward of each task."""
    from statistics import fmean

    from hud.eval.results.job_statistics import rewards_by_task

    job, runs, _ = await _played(reference)
    model = next((run.model for run in runs if run.model), job[:8])
    return model, {slug: fmean(rewards) for slug, rewards in rewards_by_task(runs).items()}


def _cells(task: TaskSignal, labels: dict[str, str]) -> list[str]:
    from hud.cli.output import number

    twin = f"duplicate of {labels[task.duplicate_of]}" if task.duplicate_of else task.stage
    return [
        labels[task.slug],
        f"{task.runs:,}",
        number(task.mean),
        number(task.deviation),
        number(task.pass_at_1, 2),
        number(task.pass_at_k, 2),
        f"{task.without_signal}/{task.groups}",
        f"{task.weight:.1%}",
        twin,
    ]
