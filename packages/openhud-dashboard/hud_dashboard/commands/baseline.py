"""`hud baseline`: record and show results of people and reference solvers on a benchmark's tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hud.cli.option_checks import PORT

if TYPE_CHECKING:
    from hud.benchmarks import Benchmark
    from hud.benchmarks.baseline import Baseline, TaskBaseline
    from hud.benchmarks.baseline.baseline_file import PersonResult
    from hud.eval import Taskset

SPLIT = click.option(
    "--split",
    type=click.Choice(["train", "held-out"]),
    default="held-out",
    show_default=True,
    help="Tasks of the benchmark.",
)
TASK_IDS = click.option(
    "--task-ids", help="Only these: slugs or positions (from 0), comma-separated."
)


@click.group(name="baseline")
def command() -> None:
    """Baselines of benchmarks: people's results, against which runs are scored."""


@command.command(
    epilog="Results go to HUD_HOME/baselines. Ctrl-C leaves; the task that is open then is no result."
)
@click.argument("benchmark")
@SPLIT
@TASK_IDS
@click.option(
    "--as",
    "person",
    metavar="ID",
    help="Your initials, or an id of your own choice.  [default: a random one]",
)
@click.option(
    "-n",
    "--tasks",
    "most",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of tasks, least done ones first.",
)
@click.option("--dashboard", is_flag=True, help="Do them in the browser; Ctrl-C here stops.")
@click.option("--no-browser", is_flag=True, help="With --dashboard: print the address only.")
@click.option(
    "--port", type=PORT, default=0, help="With --dashboard: its port.  [default: a free one]"
)
def record(
    benchmark: str,
    split: str,
    task_ids: str | None,
    person: str | None,
    most: int,
    dashboard: bool,
    no_browser: bool,
    port: int,
) -> None:
    """Do tasks of BENCHMARK yourself, at this terminal or in the browser, and add your results to its baseline."""
    import asyncio

    from hud.agents import HumanAgent
    from hud.benchmarks.baseline import recording
    from hud.benchmarks.baseline.baseline_file import own_path

    chosen, tasks = _tasks(benchmark, split, task_ids)
    who = person or recording.some_id()
    left = recording.open_tasks(chosen, tasks, who)
    if not len(left):
        click.echo(f"{who} has done all of these tasks already: hud baseline show {benchmark}")
        return
    left = left.filter([slug for slug, _ in list(left.items())[:most]])
    click.echo(
        f"{len(left)} tasks of {tasks.name}, recorded for {who!r}.\n{recording.INSTRUCTIONS}"
    )
    if dashboard:
        for result in _at_dashboard(chosen, left, who, port, not no_browser):
            _say_result(result)
    else:
        asyncio.run(recording.record_person(chosen, left, HumanAgent(), who, _say_result))
    click.echo(f"Results: {own_path(benchmark)} · Next: hud baseline show {benchmark}")


@command.command()
@click.argument("benchmark")
@SPLIT
@TASK_IDS
def measure(benchmark: str, split: str, task_ids: str | None) -> None:
    """Play BENCHMARK with its reference solvers, which anchor scores while too few people did a task."""
    import asyncio

    from hud.benchmarks.baseline.baseline_file import own_path
    from hud.benchmarks.baseline.recording import measure_reference
    from hud.cli.output import number

    chosen, tasks = _tasks(benchmark, split, task_ids)
    for name, reference in chosen.references.items():
        job = asyncio.run(measure_reference(chosen, tasks, name))
        click.echo(f"{name:<12} standing {reference.standing:g}  mean reward {number(job.reward)}")
    click.echo(f"Results: {own_path(benchmark)}")


@command.command()
@click.argument("benchmark")
@SPLIT
@TASK_IDS
@click.option("-n", "--limit", type=click.IntRange(1), default=40, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(benchmark: str, split: str, task_ids: str | None, limit: int, as_json: bool) -> None:
    """Show the baseline of BENCHMARK by task: number of people, their median score and time, and the score's anchors."""
    from hud.benchmarks.baseline import NO_PEOPLE, Baseline
    from hud.cli.output import console, lines_of, print_json

    chosen, tasks = _tasks(benchmark, split, task_ids)
    baseline = Baseline.of(chosen)
    baselines = [baseline.task(slug) for slug, _ in tasks.items()]
    if as_json:
        print_json(
            {"benchmark": chosen.name, "tasks": [_row(task, baseline) for task in baselines]}
        )
        return
    out = console()
    # A stable sort: tasks done by people first, each part in the benchmark's order.
    shown = sorted(baselines, key=lambda task: -len(task.people))[:limit]
    names = ["task", "people", "median score", "median time", "anchored on"]
    for line in lines_of(
        names,
        [_cells(task, baseline) for task in shown],
        left=["task", "anchored on"],
        shrinks="task",
    ):
        out.print(line, markup=False)
    if len(baselines) > limit:
        out.print(f"{len(baselines) - limit:,} more tasks; --limit shows them.")
    human = sum(task.human for task in baselines)
    out.print(
        f"{human:,} of {len(baselines):,} tasks have a human baseline."
        if human
        else f"{NO_PEOPLE}."
    )
    out.print(f"Add your results: hud baseline record {chosen.name}", markup=False)


def _tasks(name: str, split: str, task_ids: str | None) -> tuple[Benchmark, Taskset]:
    from hud.benchmarks import benchmark
    from hud.cli.evaluation.task_source import chosen

    selected = benchmark(name)
    return selected, chosen(selected.tasks(split), task_ids, True)


def _at_dashboard(
    benchmark: Benchmark, tasks: Taskset, person: str, port: int, opened: bool
) -> list[PersonResult]:
    """Serve tasks at the dashboard until Ctrl-C, store the results and return them."""
    from datetime import UTC, datetime

    from hud import settings
    from hud.benchmarks.baseline.recording import add_results
    from hud.errors import UsageError
    from hud_dashboard.human_baseline.benchmarks import offer, results
    from hud_dashboard.local.server import view
    from hud_platform.process.config import PlatformConfig
    from hud_platform.store import Store

    now = settings.load()
    if not now.embedded:
        raise UsageError(f"--dashboard is that of this machine; unset HUD_API_URL ({now.api_url}).")
    store = Store.open(now.home, now.database_url)
    since = datetime.now(UTC)
    taskset = offer(store, now.home, tasks.name, tasks)

    def announce(url: str) -> None:
        address = url.replace("/?", f"/baseline/{taskset}?")
        click.echo(f"The tasks: {address}\nThe address works once, for one browser. Stop: Ctrl-C")
        if opened:
            click.launch(address)

    view(PlatformConfig(home=now.home, database=now.database_url), port, announce)
    people = results(store, benchmark, taskset, person, since)
    add_results(benchmark, people)
    return people


def _say_result(result: PersonResult) -> None:
    from hud.cli.output import echo, seconds

    echo(f"{result.task}: score {result.reward:.3f} in {seconds(result.seconds)}\n")


def _row(task: TaskBaseline, baseline: Baseline) -> dict[str, Any]:
    return {
        "task": task.task,
        "people": len(task.people),
        "rewards": [result.reward for result in task.people],
        "seconds": [result.seconds for result in task.people],
        "median_reward": task.median_reward,
        "median_seconds": task.median_seconds,
        "human": task.human,
        "references": baseline.references_on(task.task),
    }


def _cells(task: TaskBaseline, baseline: Baseline) -> list[str]:
    from hud.cli.output import number, seconds

    references = baseline.references_on(task.task)
    anchors = ", ".join(f"{name} {reward:g}" for name, reward in references.items())
    return [
        task.task,
        f"{len(task.people):,}",
        number(task.median_reward),
        seconds(task.median_seconds),
        anchors or "rewards 0 and 1",
    ]
