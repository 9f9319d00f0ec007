"""`hud models compare | promote`: two checkpoints on the same tasks, and the gate between them and the head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hud.cli.models.options import as_json_option, runtime_option
from hud.cli.output import console, print_json, table
from hud.cli.platform_requests import run
from hud.eval.results.intervals import bounds, with_interval

if TYPE_CHECKING:
    from hud.eval import Taskset
    from hud.eval.results.promotion_gate import Gate
    from hud.train.config import TrainConfig

Function = TypeVar("Function", bound=Callable[..., Any])
HELD = 1
"""Exit code of a checkpoint that the gate holds."""


def _playing_options(*tasks: str, group: int) -> Callable[[Function], Function]:
    """Options of playing tasks with two checkpoints; `group` is the default number of runs of each task."""

    def decorate(function: Function) -> Function:
        for option in (
            as_json_option,
            runtime_option,
            click.option(
                "--until-certain",
                is_flag=True,
                help="Play tasks in random order, and stop once it is certain which checkpoint is better.",
            ),
            click.option("--seed", type=int, default=0, show_default=True),
            click.option(
                "--max-tokens", type=click.IntRange(min=1), default=256, show_default=True
            ),
            click.option("--max-turns", type=click.IntRange(min=1), default=10, show_default=True),
            click.option(
                "--group",
                type=click.IntRange(min=1),
                default=group,
                show_default=True,
                help="Runs of each task and checkpoint, paired by seed.",
            ),
            click.option(
                *tasks,
                "tasks",
                metavar="TASKS",
                type=click.Path(path_type=Path),
                required=True,
                help="Tasks to play: a file or folder.",
            ),
        ):
            function = option(function)
        return function

    return decorate


@click.command()
@click.argument("slug")
@click.argument("first")
@click.argument("second")
@_playing_options("--tasks", group=1)
def compare(
    slug: str,
    first: str,
    second: str,
    tasks: Path,
    as_json: bool,
    until_certain: bool,
    **playing: Any,
) -> None:
    """Compare two checkpoints (ids, names, head or base) on the same tasks."""
    from hud.train.promotion.checkpoint_comparison import compare as compare_checkpoints

    taskset, config, where = _playing(slug, tasks, playing)
    comparison = run(
        compare_checkpoints(
            config, first, second, taskset, runtime=where, until_certain=until_certain
        )
    )
    shown = comparison.as_dict()
    if as_json:
        print_json(shown)
        return
    rows = table("checkpoint", "mean reward, 95% interval")
    for name, score in ((first, comparison.first_score), (second, comparison.second_score)):
        rows.add_row(name, with_interval(score.mean, score.low, score.high))
    rows.add_row("difference", _signed(shown["difference"]))
    if comparison.anytime is not None:
        low, high = comparison.anytime
        rows.add_row("difference, at any time", bounds(low, high, signed=True))
    out = console()
    out.print(rows)
    out.print(
        f"On {comparison.difference.tasks} tasks: {comparison.verdict}. {shown['evidence']}",
        markup=False,
    )
    if shown["note"]:
        out.print(f"Note: {shown['note']}", markup=False)
    _print_subsets(shown["subsets"])


@click.command()
@click.argument("slug")
@click.argument("checkpoint")
@click.option(
    "--from",
    "source",
    metavar="MODEL",
    help="Fork of SLUG with the checkpoint, such as the candidate of a gated training run.",
)
@click.option(
    "--min-gain",
    type=float,
    default=0.0,
    show_default=True,
    help="Gain of mean reward to exceed, over all tasks.",
)
@click.option(
    "--max-regression",
    type=float,
    default=0.05,
    show_default=True,
    help="Maximum loss of mean reward in a critical subset.",
)
@click.option(
    "--critical",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="Tasks, by one of their columns, that must not regress. Repeatable.",
)
@click.option(
    "--force", is_flag=True, help="Promote regardless of the gate; recorded with the checkpoint."
)
@_playing_options("--taskset", "--tasks", group=5)
def promote(
    slug: str,
    checkpoint: str,
    source: str | None,
    min_gain: float,
    max_regression: float,
    critical: tuple[str, ...],
    force: bool,
    tasks: Path,
    as_json: bool,
    until_certain: bool,
    **playing: Any,
) -> int:
    """Move the head to CHECKPOINT if it is significantly better, without loss in critical subsets.

    Plays TASKS with the head and with CHECKPOINT on the same seeds. Exit code 0: promoted; 1: held.
    """
    from hud.eval.results.promotion_gate import Gate, subsets_of

    gate = Gate(min_gain, max_regression, critical)
    taskset, config, where = _playing(slug, tasks, playing)
    gate.check(subsets_of({task.slug: task.columns for task in taskset}))
    decision = run(
        _promote(
            config,
            source or slug,
            checkpoint,
            taskset,
            gate,
            force,
            runtime=where,
            until_certain=until_certain,
        )
    )
    if as_json:
        print_json(decision)
    else:
        _tell(decision, slug, checkpoint)
    return 0 if decision["moved"] else HELD


async def _promote(
    config: TrainConfig,
    source: str,
    checkpoint: str,
    tasks: Taskset,
    gate: Gate,
    force: bool,
    *,
    runtime: Any,
    until_certain: bool,
) -> dict[str, Any]:
    """Play the head and the candidate, and ask the platform to move the head."""
    from hud.cli.platform_requests import model_path
    from hud.client import connect
    from hud.train.promotion.promotion import promote

    # An unknown checkpoint is rejected before any rollout.
    node = await connect().get(model_path(source, "checkpoints", checkpoint))
    promotion = await promote(
        config,
        source,
        node["id"],
        tasks,
        gate,
        force=force,
        runtime=runtime,
        until_certain=until_certain,
    )
    assert promotion is not None
    return promotion.decision


def _playing(slug: str, tasks: Path, options: dict[str, Any]) -> tuple[Taskset, TrainConfig, Any]:
    """Return the tasks, their configuration, and the runtime."""
    from hud.eval import Taskset
    from hud.train.config import make_config
    from hud.train.rollouts.runtimes import training_runtime

    runtime, group = options.pop("runtime"), options.pop("group")
    taskset = Taskset.from_file(tasks)
    config = make_config({"model": slug, "eval_group": group, **options})
    return taskset, config, training_runtime(runtime, list(taskset))


def _tell(decision: dict[str, Any], slug: str, checkpoint: str) -> None:
    out = console()
    verb = "Promoted" if decision["promoted"] else "Forced" if decision["moved"] else "Held"
    out.print(f"{verb}: {checkpoint} of {decision['from']['model']}.", markup=False)
    for reason in decision["reasons"]:
        out.print(f"  {reason}", markup=False)
    for note in decision["notes"]:
        out.print(f"  Note: {note}", markup=False)
    _print_subsets(decision["subsets"])
    if decision["moved"]:
        out.print(f"{slug} serves {decision['checkpoint_id']}.", markup=False)


def _print_subsets(subsets: list[dict[str, Any]]) -> None:
    if not subsets:
        return
    rows = table("subset", "tasks", "difference, 95% interval", "p (Holm)", "verdict")
    for subset in subsets:
        verdict = "no difference shown" if subset["verdict"] == "noise" else subset["verdict"]
        rows.add_row(
            subset["name"],
            str(subset["tasks"]),
            _signed(subset),
            f"{subset['adjusted']:.3f}",
            verdict,
        )
    console().print(rows)


def _signed(difference: dict[str, Any]) -> str:
    return with_interval(difference["mean"], difference["low"], difference["high"], signed=True)
