"""A recipe: a sequence of trainings, for example of subagents and then of their orchestrator.

Every stage is a training run with the settings of `TrainConfig`; settings above the stages apply to all of them
(`docs/hierarchies.md` has an example). A stopped or killed recipe resumes at its stage and step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hud import settings
from hud.client import Client, connect
from hud.durable_files import read_object, write_file
from hud.errors import NotFoundError, UsageError
from hud.eval.results.held_out_scores import SCORE, Score, scores_of
from hud.train.config import SubagentConfig, TrainConfig, make_config, read_toml
from hud.train.loop import TrainReport, train
from hud.train.monitoring.progress import Reporter
from hud.train.rollouts.scoring import score

if TYPE_CHECKING:
    from hud.eval.scheduler import StopSignal
    from hud.eval.tasksets.taskset import Taskset


@dataclass(frozen=True)
class Stage:
    """A training of a recipe."""

    name: str
    config: TrainConfig
    tasks: Taskset | None = None
    """Replacement of the configured value."""
    held_out: Taskset | None = None


@dataclass(frozen=True)
class Recipe:
    """Trainings in order."""

    stages: list[Stage]

    @property
    def fingerprint(self) -> str:
        """Equal for recipes that describe the same experiment."""
        fingerprints = ":".join(f"{stage.name}={stage.config.fingerprint}" for stage in self.stages)
        return hashlib.sha256(fingerprints.encode()).hexdigest()[:16]


@dataclass
class StageReport:
    """Result of a recipe's stage."""

    name: str
    model: str
    scores: list[Score]
    """Held-out scores, oldest first."""
    finished: bool
    report: TrainReport | None = None
    """None if an earlier call had finished the stage."""
    joined: dict[str, Score] = field(default_factory=dict)
    """Scores of trained subagents after it, on the held-out tasks of their own stages."""


Showing = Callable[[Stage], AbstractContextManager[Reporter]]
"""Factory of the reporter of a stage's progress."""


def is_recipe(path: Path | None) -> bool:
    """True for a TOML file that has stages."""
    return path is not None and "stages" in read_toml(path)


def load_recipe(path: Path, overrides: dict[str, Any] | None = None) -> Recipe:
    """Return the recipe of a TOML file; `overrides` apply to every stage."""
    return make_recipe(read_toml(path), overrides, str(path))


def make_recipe(
    values: dict[str, Any], overrides: dict[str, Any] | None = None, where: str = "The recipe"
) -> Recipe:
    """Return a validated recipe; raises `UsageError` with the stage of an error."""
    rows = values.get("stages")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{where}: stages must be tables, each [[stages]] with a model and tasks.")
    shared = {name: value for name, value in values.items() if name != "stages"}
    stages: list[Stage] = []
    for number, row in enumerate(rows, start=1):
        stage_settings = {**shared, **row, **(overrides or {})}
        name = str(stage_settings.pop("name", stage_settings.get("model", number)))
        place = f"{where}: stage {name!r}"
        if any(name == other.name for other in stages):
            raise UsageError(f"{place} is there twice; give one of them another name.")
        config = make_config(stage_settings, place)
        if not config.tasks:
            raise UsageError(f"{place} has no tasks.")
        stages.append(Stage(name, config))
    return Recipe(stages)


async def follow(
    recipe: Recipe,
    *,
    showing: Showing | None = None,
    stop: StopSignal | None = None,
    fresh: bool = False,
    override_guard: bool = False,
) -> list[StageReport]:
    """Train the stages in order, without those that an earlier call finished.

    `fresh` starts with the first stage, from the models' heads. A stage paused by the guard ends the call, and continues
    in one with `override_guard`.
    """
    progress = _Progress(recipe, fresh=fresh)
    client = connect()
    reports: list[StageReport] = []
    played_as: dict[str, SubagentConfig] = {}
    for stage in recipe.stages:
        report = await progress.finished(client, stage)
        if report is None:
            opened = nullcontext(Reporter()) if showing is None else showing(stage)
            with opened as reporter:
                trained = await train(
                    stage.config,
                    tasks=stage.tasks,
                    held_out=stage.held_out,
                    reporter=cast(
                        Reporter, _Noting(reporter, partial(progress.record, stage, "run_id"))
                    ),
                    stop=stop,
                    # Resume this recipe's run only, not another command's unfinished run.
                    fresh=stage.name not in progress.stages,
                    override_guard=override_guard,
                    played_as=played_as,
                )
            report = StageReport(
                stage.name, stage.config.model, trained.scores, trained.finished, report=trained
            )
        played_as[stage.config.model] = stage.config.player
        reports.append(report)
        if not report.finished:
            return reports
        if stage.config.joined and not report.joined:
            report.joined = await _scores_after(recipe, stage, stop)
            rows = {model: model_score.as_dict() for model, model_score in report.joined.items()}
            progress.record(stage, "joined", rows)
    return reports


async def _scores_after(recipe: Recipe, stage: Stage, stop: StopSignal | None) -> dict[str, Score]:
    """Score the trained subagents, each on the held-out tasks of the stage that trained it."""
    scores: dict[str, Score] = {}
    for own in recipe.stages[: recipe.stages.index(stage)]:
        has_tasks = own.held_out is not None or own.config.held_out
        if own.config.model in stage.config.joined and has_tasks:
            measured = await score(own.config, held_out=own.held_out, stop=stop)
            if measured is not None:
                scores[own.config.model] = measured
    return scores


class _Progress:
    """Journal of a recipe: its stages and their training runs, in a file."""

    def __init__(self, recipe: Recipe, *, fresh: bool) -> None:
        self.file = settings.load().home / "training" / f"recipe-{recipe.fingerprint}.json"
        self.stages: dict[str, dict[str, Any]] = {}
        if not fresh:
            cure = "Start the recipe anew with --fresh, or remove the file."
            self.stages = read_object(self.file, cure)

    def record(self, stage: Stage, name: str, value: Any) -> None:
        self.stages.setdefault(stage.name, {})[name] = value
        write_file(self.file, json.dumps(self.stages).encode())

    async def finished(self, client: Client, stage: Stage) -> StageReport | None:
        """Return the result of a finished stage; None for an unfinished one."""
        stored = self.stages.get(stage.name)
        if stored is None:
            return None
        try:
            row = await client.get(f"/v2/training-runs/{stored['run_id']}")
        except NotFoundError:
            return None
        if row["status"] != "finished" or stage.config.steps > int(row["config"]["steps"]):
            return None
        return StageReport(
            stage.name,
            stage.config.model,
            scores_of(row["state"]),
            finished=True,
            joined={
                model: SCORE.validate_python(stored_score)
                for model, stored_score in stored.get("joined", {}).items()
            },
        )


class _Noting:
    """A reporter that also records the training run's id."""

    def __init__(self, shown: Reporter, began: Callable[[str], None]) -> None:
        self._shown = shown
        self._began = began

    def started(self, run_id: str, first_step: int, steps: int) -> None:
        self._began(run_id)
        self._shown.started(run_id, first_step, steps)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)
