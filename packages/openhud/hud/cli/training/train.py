"""`hud train`: the training loop as a command. Its options are the settings of `TrainConfig`, with the same names."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import click

from hud.cli.command_line import command_line, pairs
from hud.cli.main import INTERRUPTED
from hud.cli.output import console, count, number, print_json, seconds, training_usage
from hud.cli.training.config_options import config_options
from hud.eval.results.intervals import with_interval

if TYPE_CHECKING:
    from hud.train.config import TrainConfig
    from hud.train.loop import TrainReport
    from hud.train.monitoring.progress import Reporter
    from hud.train.recipe import Recipe, StageReport
    from hud.train.supervised.supervised_run import SupervisedReport

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
PAUSED = 1
"""Exit code of a run that the guard paused."""
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


class _GoingOn(TypedDict):
    """Options of resuming an unfinished run."""

    fresh: bool
    override_guard: bool


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
    going_on: _GoingOn = {"fresh": fresh, "override_guard": override_guard}
    if source is not None:
        values = _supervised_values(source, file, values)
        if axes:
            return asyncio.run(_sweep_from(source, values, axes, yes, going_on, as_json=as_json))
        return asyncio.run(_learn_from(source, values, going_on, as_json=as_json))
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
        return _follow(file, values, going_on, as_json=as_json)
    config = load_config(file, values)
    return asyncio.run(_train(config, going_on, as_json=as_json))


def _follow(file: Path, values: dict[str, Any], going_on: _GoingOn, *, as_json: bool) -> int:
    """Train the stages of a recipe."""
    from hud.errors import UsageError
    from hud.train.recipe import load_recipe

    if "model" in values or "tasks" in values:
        raise UsageError(f"{file} is a recipe, whose stages name models and tasks; give neither.")
    recipe = load_recipe(file, values)
    return asyncio.run(_train_stages(recipe, going_on, as_json=as_json))


async def _train_stages(recipe: Recipe, going_on: _GoingOn, *, as_json: bool) -> int:
    from hud.cli.training.panel import reporter
    from hud.eval import StopSignal
    from hud.train.recipe import Stage, follow

    stop = StopSignal()

    @contextmanager
    def shown(stage: Stage) -> Iterator[Reporter]:
        place = f"{recipe.stages.index(stage) + 1}/{len(recipe.stages)}"
        if not as_json:
            console().print(f"\nStage {place}: {stage.name}", markup=False)
        with reporter(stage.config, stop, quiet=as_json) as shown_to:
            yield shown_to

    with stop.on_interrupt():
        reports = await follow(recipe, showing=shown, stop=stop, **going_on)
    if as_json:
        rows = [asdict(report) for report in reports]
        print_json({"stages": rows, "interrupted": stop.stopping})
    else:
        _tell_stages(reports, len(recipe.stages))
        if all(report.report is None for report in reports):
            console().print(
                "All were finished before; nothing is trained. For more, raise a stage's steps; --fresh starts again from the heads."
            )
    paused = any(
        stage_report.report is not None and stage_report.report.paused is not None
        for stage_report in reports
    )
    return INTERRUPTED if stop.stopping else PAUSED if paused else 0


def _tell_stages(reports: list[StageReport], stages: int) -> None:
    out = console()
    finished = sum(report.finished for report in reports)
    out.print(f"\n{finished} of {stages} stages are finished.")
    for report in reports:
        scored = (
            [("before", report.scores[0]), ("after", report.scores[-1])] if report.scores else []
        )
        for name, score in scored[: len(report.scores)]:
            out.print(
                f"  {report.name:<16} held-out {name:<7} {with_interval(score.mean, score.low, score.high)}",
                markup=False,
            )
        for model, score in report.joined.items():
            out.print(
                f"  {model:<16} held-out joined  {with_interval(score.mean, score.low, score.high)}",
                markup=False,
            )
    paused = next(
        (
            stage_report.report
            for stage_report in reports
            if stage_report.report and stage_report.report.paused
        ),
        None,
    )
    if paused is not None and paused.paused is not None:
        out.print(paused.paused.advice(paused.model), markup=False, soft_wrap=True)
    elif finished < stages:
        out.print(f"Go on: {command_line(click.get_current_context())}", markup=False)


async def _train(config: TrainConfig, going_on: _GoingOn, *, as_json: bool) -> int:
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
    return INTERRUPTED if stop.stopping else PAUSED if report.paused is not None else 0


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
    out.print(f"  metrics  {report.metrics_file}", markup=False)
    if report.plot is not None:
        out.print(f"  curves   {report.plot}", markup=False)
    if report.paused is not None:
        out.print(report.paused.advice(report.model), markup=False, soft_wrap=True)
    elif report.finished:
        out.print(f"Next: hud models checkpoints {report.model}", markup=False)
    else:
        out.print("Give the same command again to go on.")


async def _supervised_training(
    source: str, values: dict[str, Any], *, rate: bool, as_json: bool
) -> tuple[dict[str, Any], Callable[..., Awaitable[SupervisedReport]]]:
    """Return the settings of a supervised run with its jobs and, with `rate`, its learning rate, and the training on its data."""
    from hud.client import connect
    from hud.eval import Taskset
    from hud.train.planning.default_rates import default_rates
    from hud.train.supervised.demonstrations import is_file, job_of
    from hud.train.supervised.supervised_run import learn_from

    tasks = Taskset.from_file(values["tasks"]) if "tasks" in values else None
    file = source if is_file(source) else None
    jobs = [await job_of(connect(), source, tasks or ())] if file is None else []
    values = {**values, "jobs": jobs}
    if rate and "lr" not in values:
        rates = await default_rates(connect(), values["model"])
        values["lr"] = rates.of(values.get("loss", "cross_entropy"))
        if not as_json:
            console().print(rates.note(values["lr"]), markup=False)
    return values, partial(learn_from, file=file, tasks=tasks)


async def _sweep_from(
    source: str,
    values: dict[str, Any],
    axes: tuple[str, ...],
    yes: bool,
    going_on: _GoingOn,
    *,
    as_json: bool,
) -> int:
    """Sweep settings of supervised training."""
    from hud.cli.training.sweep import sweep_settings
    from hud.train.supervised.config import make_supervised_config

    rate = not any(axis.startswith("lr=") for axis in axes)
    values, training = await _supervised_training(source, values, rate=rate, as_json=as_json)
    return await sweep_settings(
        make_supervised_config,
        values,
        axes,
        yes,
        training,
        data=_identity_of(source),
        as_json=as_json,
        **going_on,
    )


def _identity_of(source: str) -> list[str]:
    """Return the identity of a source of runs, for a fingerprint: a file's includes its content."""
    file = Path(source)
    return [source, sha256(file.read_bytes()).hexdigest()] if file.is_file() else [source]


async def _learn_from(
    source: str, values: dict[str, Any], going_on: _GoingOn, *, as_json: bool
) -> int:
    """Supervised training on a file's conversations, or on a recorded job's runs."""
    from hud.cli.training.panel import reporter
    from hud.eval import StopSignal
    from hud.train.supervised.config import make_supervised_config

    values, training = await _supervised_training(source, values, rate=True, as_json=as_json)
    config = make_supervised_config(values)
    stop = StopSignal()
    with stop.on_interrupt(), reporter(config, stop, quiet=as_json) as shown:
        report = await training(config, reporter=shown, stop=stop, **going_on)
    if as_json:
        print_json({**asdict(report), "interrupted": stop.stopping})
    else:
        _tell_supervised(report, values.get("tasks"), "pair" if config.compares else "token")
    return INTERRUPTED if stop.stopping else PAUSED if report.paused is not None else 0


def _tell_supervised(report: SupervisedReport, tasks: str | None, unit: str) -> None:
    out = console()
    verb = "Finished" if report.finished else "Stopped" if report.paused is None else "Paused"
    out.print(
        f"\n{verb} at step {report.next_step} of {report.steps}: {report.model} learned from {count(report.runs, 'run')} in "
        f"{count(report.next_step - report.first_step, 'step')} ({seconds(report.seconds)}); {count(report.left_out, 'run')} left out."
    )
    out.print(f"  loss per {unit:<5}  {number(report.first_loss)} to {number(report.last_loss)}")
    if report.last_held_out_loss is not None:
        losses = f"{number(report.first_held_out_loss)} to {number(report.last_held_out_loss)}"
        out.print(f"  held-out loss   {losses}")
    if report.held_out_accuracy is not None:
        out.print(f"  held-out pairs  accuracy {report.held_out_accuracy}", markup=False)
    for score in report.scores:
        shown = with_interval(score.mean, score.low, score.high)
        out.print(f"  held-out        {shown}  step {score.step}", markup=False)
    out.print(f"  metrics  {report.metrics_file}", markup=False)
    if report.plot is not None:
        out.print(f"  curves   {report.plot}", markup=False)
    if report.paused is not None:
        out.print(report.paused.advice(report.model), markup=False, soft_wrap=True)
    elif report.finished:
        train_on = f"Next: hud train {report.model} {shlex.quote(str(tasks))}"
        out.print(train_on if tasks else training_usage(report.model), markup=False)
    else:
        out.print("Give the same command again to go on.")


def _supervised_values(source: str, file: Path | None, values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a supervised run. Raises `UsageError` for those that it does not have."""
    from hud.errors import UsageError
    from hud.train.supervised.config import SupervisedConfig
    from hud.train.supervised.demonstrations import LATEST

    if values.get("loss", "cross_entropy") not in ("cross_entropy", "dpo", "bradley_terry"):
        raise UsageError(
            "--from learns by cross_entropy, dpo or bradley_terry; leave --loss out for the first."
        )
    if file is not None or "model" not in values:
        raise UsageError("--from takes MODEL, TASKS and options, no --config.")
    unused = sorted(set(values) - set(SupervisedConfig.model_fields))
    if unused:
        raise UsageError(f"--{unused[0].replace('_', '-')} has no meaning with --from.")
    if "tasks" not in values and source == LATEST:
        raise UsageError(
            "--from latest takes MODEL and TASKS: it is the newest job of these tasks."
        )
    return values


def _numbers(texts: tuple[str, ...]) -> dict[str, float]:
    from hud.errors import UsageError

    numbers = {}
    for key, text in pairs("loss-config", "KEY=NUMBER", texts):
        try:
            numbers[key] = float(text)
        except ValueError:
            raise UsageError(f"--loss-config takes KEY=NUMBER, not '{key}={text}'.") from None
    return numbers
