"""`hud train --from`: supervised training on conversations of a file, or on a recorded job's runs."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hud.cli.output import console, count, number, print_json, seconds, training_usage
from hud.cli.training.continuation import Continuation, exit_code, print_files_and_next
from hud.eval.results.intervals import with_interval

if TYPE_CHECKING:
    from hud.train.supervised.supervised_run import SupervisedReport


async def _supervised_training(
    source: str, values: dict[str, Any]
) -> tuple[dict[str, Any], Callable[..., Awaitable[SupervisedReport]]]:
    """Return the settings of a supervised run with its jobs, and the training on its data."""
    from hud.client import connect
    from hud.eval import Taskset
    from hud.train.supervised.demonstrations import is_file, job_of
    from hud.train.supervised.supervised_run import learn_from

    tasks = Taskset.from_file(values["tasks"]) if "tasks" in values else None
    file = source if is_file(source) else None
    jobs = [await job_of(connect(), source, tasks or ())] if file is None else []
    return {**values, "jobs": jobs}, partial(learn_from, file=file, tasks=tasks)


async def sweep_from(
    source: str,
    values: dict[str, Any],
    axes: tuple[str, ...],
    yes: bool,
    going_on: Continuation,
    *,
    as_json: bool,
) -> int:
    """Sweep settings of supervised training."""
    from hud.cli.training.sweep import sweep_settings
    from hud.train.supervised.config import make_supervised_config
    from hud.train.supervised.demonstrations import identity_of

    values, training = await _supervised_training(source, values)
    return await sweep_settings(
        make_supervised_config,
        values,
        axes,
        yes,
        training,
        data=identity_of(source),
        as_json=as_json,
        **going_on,
    )


async def train_from(
    source: str, values: dict[str, Any], going_on: Continuation, *, as_json: bool
) -> int:
    """Supervised training on a file's conversations, or on a recorded job's runs."""
    from hud.cli.training.panel import reporter
    from hud.eval import StopSignal
    from hud.train.supervised.config import make_supervised_config

    values, training = await _supervised_training(source, values)
    config = make_supervised_config(values)
    stop = StopSignal()
    with stop.on_interrupt(), reporter(config, stop, quiet=as_json) as shown:
        report = await training(config, reporter=shown, stop=stop, **going_on)
    if as_json:
        print_json({**asdict(report), "interrupted": stop.stopping})
    else:
        _tell_supervised(report, values.get("tasks"), "pair" if config.compares else "token")
    return exit_code(stopping=stop.stopping, paused=report.paused is not None)


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
    train_on = f"Next: hud train {report.model} {shlex.quote(str(tasks))}"
    print_files_and_next(report, train_on if tasks else training_usage(report.model))


def supervised_values(source: str, file: Path | None, values: dict[str, Any]) -> dict[str, Any]:
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
