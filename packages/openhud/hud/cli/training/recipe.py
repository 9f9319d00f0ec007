"""`hud train --config RECIPE`: the stages of a recipe, and their scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hud.cli.command_line import command_line
from hud.cli.output import console, print_json
from hud.cli.training.continuation import Continuation, exit_code
from hud.eval.results.intervals import with_interval

if TYPE_CHECKING:
    from hud.train.monitoring.progress import Reporter
    from hud.train.recipe import StageReport


async def train_stages(
    file: Path, values: dict[str, Any], going_on: Continuation, *, as_json: bool
) -> int:
    """Train the stages of a recipe; return the exit code. Raises `UsageError` for settings that its stages have."""
    from hud.cli.training.panel import reporter
    from hud.errors import UsageError
    from hud.eval import StopSignal
    from hud.train.recipe import Stage, follow, load_recipe

    if "model" in values or "tasks" in values:
        raise UsageError(f"{file} is a recipe, whose stages name models and tasks; give neither.")
    recipe = load_recipe(file, values)
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
    return exit_code(stopping=stop.stopping, paused=paused)


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
