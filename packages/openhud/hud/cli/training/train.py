"""`hud train`: the training loop as a command. Its options are the settings of `TrainConfig`, with the same names."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hud.cli.command_line import pairs
from hud.cli.output import console, count, print_json, seconds
from hud.cli.training.config_options import config_options
from hud.cli.training.continuation import Continuation, exit_code, print_files_and_next
from hud.eval.results.intervals import with_interval

if TYPE_CHECKING:
    from hud.train.config import TrainConfig
    from hud.train.loop import TrainReport

_REPEATED = {
    "held_out": "TASKS",
    "track": "TRACKER",
    "loss_config": "KEY=NUMBER",
    "agent_settings": "KEY=VALUE",
    "subagents": "NAME=MODEL",
    "joined": "MODEL",
    "critical": "COLUMN=VALUE",
    "criteria": "TEXT[=WEIGHT]",
}
_SUPERVISED_ONLY = (
    "epochs",
    "batch",
    "min_reward",
    "best_of",
    "test",
    "test_share",
    "pairs",
    "pairs_per_task",
)


def _config_options(function: Any) -> Any:
    """One option for each setting of `TrainConfig`: those of its own first, then those that every run has."""
    from hud.train.config import TrainConfig
    from hud.train.run_settings import RunSettings

    fields = TrainConfig.model_fields
    own = [name for name in fields if name not in RunSettings.model_fields]
    shared = [name for name in RunSettings.model_fields if name not in ("model", "tasks")]
    return config_options({name: fields[name] for name in (*own, *shared)}, _REPEATED)(function)


def _refuse_truncation(
    context: click.Context, option: click.Parameter, value: float | None
) -> None:
    from hud.train.config import TRUNCATED

    del context
    if value is not None:
        raise click.UsageError(f"{option.opts[0]}: {TRUNCATED}")


@click.command(
    name="train",
    epilog="Repeat the command to resume a stopped or killed run; a finished one goes on with more --steps. Exit code 1: the guard "
    "paused it.",
)
@click.argument("model", required=False)
@click.argument("tasks", required=False)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="TOML file of these settings; with [[stages]], a recipe of several trainings.",
)
@click.option(
    "--from",
    "source",
    metavar="FILE|JOB",
    help="Supervised training (cross_entropy) on conversations of a file, such as chat messages in JSON lines, or on a job's recorded "
    "runs; `latest`: the newest job with rewards above 0 by another agent.",
)
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    help="With --from: passes over the runs.  [default: 1]",
)
@click.option(
    "--batch", type=click.IntRange(min=1), help="With --from: runs per step.  [default: 32]"
)
@click.option("--min-reward", type=float, help="With --from: omit runs below this reward.")
@click.option(
    "--best-of",
    type=click.IntRange(min=2),
    help="With --from: of every so many runs of a task, train on the one with the highest reward alone.",
)
@click.option(
    "--test",
    metavar="FILE|JOB",
    help="With --from: conversations whose loss is measured, and which are not trained on.",
)
@click.option(
    "--test-share",
    type=click.FloatRange(0, 1, max_open=True),
    help="With --from: share of the runs that is not trained on, and whose loss is measured; of a reward model, share of the tasks.  [default: 0]",
)
@click.option(
    "--pairs",
    metavar="rewards|people[:NAME]",
    help="With --loss dpo or bradley_terry: pairs of the best and the worst run of a task, or of runs that people compared, by a "
    "criterion.  [default: rewards; NAME: better]",
)
@click.option(
    "--pairs-per-task",
    type=click.IntRange(1, 32),
    help="With --loss dpo or bradley_terry: most pairs of a task by rewards, from the best and the worst run inwards; no run is in two, and "
    "every task has the same weight.  [default: 1]",
)
@click.option(
    "--sweep",
    "axes",
    multiple=True,
    metavar="SETTING=A,B",
    help="Train a fork of MODEL with each value of a setting, such as lr=1e-5,3e-5, and compare their held-out scores. Repeatable: all "
    "combinations.",
)
@click.option("-y", "--yes", is_flag=True, help="With --sweep: play any number of combinations.")
@click.option(
    "--fresh",
    is_flag=True,
    help="Start a new run from the head, without resuming, also where one has finished.",
)
@click.option(
    "--override-guard",
    is_flag=True,
    help="Continue a run paused by the guard; recorded with it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, at the end.")
@click.option("--top-p", type=float, hidden=True, expose_value=False, callback=_refuse_truncation)
@click.option("--top-k", type=int, hidden=True, expose_value=False, callback=_refuse_truncation)
@_config_options
def command(
    model: str | None,
    tasks: str | None,
    file: Path | None,
    source: str | None,
    axes: tuple[str, ...],
    yes: bool,
    fresh: bool,
    override_guard: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Train MODEL on its own rollouts of TASKS (.py, .json, .jsonl, or a folder)."""
    from hud.cli.evaluation.player import parse_settings
    from hud.errors import UsageError
    from hud.train.config import load_config, read_toml
    from hud.train.recipe import is_recipe

    if model is None and file is None:
        raise UsageError(
            "Which model, and which tasks? hud train MODEL TASKS; `hud models list` lists models."
        )
    if model is not None and tasks is not None and Path(model).suffix and Path(model).is_file():
        raise UsageError(
            f"{model} is a file; the model comes first: hud train {shlex.join([tasks, model])}"
        )
    values = {"model": model, "tasks": tasks, **options}
    values["loss_config"] = _numbers(options["loss_config"]) or None
    values["agent_settings"] = parse_settings(options["agent_settings"], "agent-settings") or None
    values["subagents"] = dict(pairs("subagents", "NAME=MODEL", options["subagents"])) or None
    values |= {
        name: list(options[name]) or None
        for name in ("held_out", "joined", "critical", "track", "criteria")
    }
    values = {name: value for name, value in values.items() if value is not None}
    if yes and not axes:
        raise UsageError("--yes goes with --sweep.")
    going_on: Continuation = {"fresh": fresh, "override_guard": override_guard}
    if source is not None:
        from hud.cli.training.supervised import supervised_values, sweep_from, train_from

        values = supervised_values(source, file, values)
        if axes:
            return asyncio.run(sweep_from(source, values, axes, yes, going_on, as_json=as_json))
        return asyncio.run(train_from(source, values, going_on, as_json=as_json))
    for name in _SUPERVISED_ONLY:
        if name in values:
            raise UsageError(f"--{name.replace('_', '-')} goes with --from.")
    if axes:
        from hud.cli.training.sweep import sweep_settings
        from hud.train.config import make_config

        if file is not None:
            values = {**read_toml(file), **values}
        return asyncio.run(
            sweep_settings(make_config, values, axes, yes, as_json=as_json, **going_on)
        )
    if file is not None and is_recipe(file):
        from hud.cli.training.recipe import train_stages

        return asyncio.run(train_stages(file, values, going_on, as_json=as_json))
    config = load_config(file, values)
    return asyncio.run(_train(config, going_on, as_json=as_json))


async def _train(config: TrainConfig, going_on: Continuation, *, as_json: bool) -> int:
    from hud.cli.training.memory_table import before_training
    from hud.cli.training.panel import reporter
    from hud.eval import StopSignal
    from hud.train.loop import train

    if not as_json:
        for line in await before_training(config):
            console().print(line, markup=False, highlight=False)
    stop = StopSignal()
    with stop.on_interrupt(), reporter(config, stop, quiet=as_json) as shown:
        report = await train(config, reporter=shown, stop=stop, **going_on)
    if as_json:
        print_json({**asdict(report), "interrupted": stop.stopping})
    else:
        _tell(report, config, stop.stopping)
    return exit_code(stopping=stop.stopping, paused=report.paused is not None)


def _tell(report: TrainReport, config: TrainConfig, stopped: bool) -> None:
    out = console()
    done = report.next_step - report.first_step
    verb = "Paused" if report.paused else "Stopped" if stopped else "Finished"
    out.print(
        f"\n{verb} at step {report.next_step} of {config.steps}: {count(done, 'step')} in {seconds(report.seconds)}."
    )
    if report.before is not None and report.after is not None:
        measured = [("before", report.before), ("after", report.after)]
        for name, score in measured if report.after.step else measured[:1]:
            where = f"step {score.step}"
            out.print(
                f"  held-out {name:<7} {with_interval(score.mean, score.low, score.high)}  {where}",
                markup=False,
            )
    if report.groups_without_spread:
        skipped = f"  skipped  {count(report.groups_without_spread, 'group')} without signal"
        replaced = count(report.groups_replaced, "other task")
        out.print(f"{skipped}; {replaced} played instead" if report.groups_replaced else skipped)
    print_files_and_next(report, f"Next: hud models checkpoints {report.model}")


def _numbers(texts: tuple[str, ...]) -> dict[str, float]:
    from hud.errors import UsageError

    numbers = {}
    for key, text in pairs("loss-config", "KEY=NUMBER", texts):
        try:
            numbers[key] = float(text)
        except ValueError:
            raise UsageError(f"--loss-config takes KEY=NUMBER, not '{key}={text}'.") from None
    return numbers
