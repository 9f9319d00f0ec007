"""`hud models compare`: two checkpoints on the same tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from hud.cli.models.options import as_json_option, runtime_option
from hud.cli.output import console, print_json, table
from hud.eval.results.intervals import with_interval


@click.command()
@click.argument("slug")
@click.argument("first")
@click.argument("second")
@click.option(
    "--tasks",
    metavar="TASKS",
    type=click.Path(path_type=Path),
    required=True,
    help="Tasks to play.",
)
@click.option(
    "--group", type=click.IntRange(min=1), default=1, show_default=True, help="Runs of each."
)
@click.option("--max-turns", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--max-tokens", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@runtime_option
@as_json_option
def compare(
    slug: str,
    first: str,
    second: str,
    tasks: Path,
    group: int,
    max_turns: int,
    max_tokens: int,
    seed: int,
    runtime: str,
    as_json: bool,
) -> None:
    """Play the same tasks with two checkpoints (ids, names, head or base) and tell which is better."""
    from dataclasses import asdict

    from hud.eval import Taskset
    from hud.train.config import make_config
    from hud.train.monitoring.scoring import compare as compare_checkpoints
    from hud.train.rollouts.runtimes import runtime_named

    values = {"model": slug, "eval_group": group, "max_turns": max_turns, "max_tokens": max_tokens}
    config = make_config({**values, "seed": seed})
    taskset = Taskset.from_file(tasks)
    where = runtime_named(runtime, list(taskset))
    found = asyncio.run(compare_checkpoints(config, first, second, taskset, runtime=where))
    if as_json:
        print_json({**asdict(found), "verdict": found.verdict})
        return
    shown = table("checkpoint", "mean reward, 95% interval")
    rows = (
        (first, found.first_score),
        (second, found.second_score),
        ("difference", found.difference),
    )
    for name, score in rows:
        signed = name == "difference"
        shown.add_row(name, with_interval(score.mean, score.low, score.high, signed=signed))
    console().print(shown)
    console().print(f"On {found.tasks} tasks: {found.verdict}.", markup=False)
