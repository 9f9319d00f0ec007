"""`Launching`: launches of training runs and evaluations from the dashboard's forms, and resumed runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hud.errors import ConflictError, UsageError
from hud.processes.presence import is_gone
from hud.train.config import TrainConfig
from hud_dashboard.launching.launcher import Launch, Launches
from hud_platform.gateway.chat_formats import format_of
from hud_platform.serving.calls import MoveHead
from hud_platform.tasksets.playable import Playable, Source, file_source, refuse_shared
from hud_platform.training.runs import TrainingRuns

if TYPE_CHECKING:
    from hud_platform.access import Identity
    from hud_platform.models.records import ModelRecord
    from hud_platform.models.registry import Registry
    from hud_platform.serving.token_engine import TokenEngine


@dataclass(frozen=True)
class Launching:
    """Launches by one caller."""

    launches: Launches
    registry: Registry
    """Registry limited to the models of the caller's team."""
    engine: Callable[[], TokenEngine]
    """Called to move a head: constructing the engine loads torch."""
    who: Identity
    own_machine: bool
    """True: tasks may also come from files of this machine."""

    @property
    def runs(self) -> TrainingRuns:
        """Training runs of the caller's team."""
        return TrainingRuns(self.registry.store, self.who.team_id)

    @property
    def playable(self) -> Playable:
        """Playable tasksets of the caller's team."""
        return Playable(self.registry.store, self.who.team_id)

    def of_team(self) -> list[Launch]:
        """Return the launches of the caller's team, newest first."""
        return self.launches.of_team(self.who.team_id)

    def of_run(self, run_id: str) -> Launch | None:
        """Return the newest launch of a training run."""
        return self.launches.of_run(self.who.team_id, run_id)

    async def begin_training(
        self,
        model: ModelRecord,
        start: str,
        config: TrainConfig,
        tasks: Source,
        held_out: Sequence[Source],
    ) -> Launch:
        """Move the head to a checkpoint (an id, a name, `head` or `base`) and start a training run from there.
        Raises `UsageError` for invalid settings, `ConflictError` while the model is trained.
        """
        refuse_shared(tasks, held_out)
        if config.reasoning_effort is not None:
            form = await asyncio.to_thread(format_of, model.folder)
            form.chat.template(tools=True).reasoning.refuse(config.reasoning_effort)
        checkpoint = await asyncio.to_thread(self.registry.tree.find, model, start)
        work = await asyncio.to_thread(self._work, config, tasks, held_out)
        self.refuse_trained(model)
        if checkpoint != model.head_checkpoint_id:
            await self.engine().call(model, MoveHead(checkpoint=checkpoint))
        work = {**work, "fresh": True, "override_guard": False}
        return self.launches.launch(self.who, "training", model, tasks.name, work)

    async def resume_training(self, run: dict[str, Any], *, override_guard: bool = False) -> Launch:
        """Resume a run. Raises `ConflictError` with the reason if it cannot be resumed.
        `override_guard` resumes a run that the guard paused.
        """
        problem = await asyncio.to_thread(self.why_not_resumed, run)
        if problem is not None:
            raise ConflictError(problem)
        launched = run["state"]["launched"]
        config = TrainConfig(**run["config"])
        model = self.registry.model(run["model_id"])

        def again() -> dict[str, Any]:
            held_out = [
                self._kept_source(held_out_source) for held_out_source in launched["held_out"]
            ]
            return self._work(config, self._kept_source(launched["tasks"]), held_out)

        work = {
            **await asyncio.to_thread(again),
            "fresh": False,
            "override_guard": override_guard,
        }
        launch = self.launches.launch(self.who, "training", model, launched["tasks"]["name"], work)
        launch.run_id = run["id"]
        return launch

    def why_not_resumed(self, run: dict[str, Any]) -> str | None:
        """Return the reason why the dashboard cannot resume a run; None: it can."""
        if run["status"] == "finished":
            return "It is finished."
        if run["config"].get("script"):
            return "Its steps are those of a script: run the script again."
        if run["config"].get("kind"):
            return "It goes on by its command with the same options: hud optimize, hud improve or hud train --sweep."
        if self.launches.training(run["model_id"]) is not None:
            return "Its model is being trained."
        launched = run["state"].get("launched")
        if launched is None:
            return "It was started by hud train: run the same command again on the same machine."
        if run["status"] == "running" and not is_gone(str(launched["by"])):
            launch = self.of_run(run["id"])
            if launch is None or not launch.over:
                return "It runs on another server."
        same = [
            run_row
            for run_row in self.runs.recent(run["model_id"])
            if run_row["status"] != "finished"
            and run_row["state"].get("fingerprint") == run["state"].get("fingerprint")
        ]
        if same and same[0]["id"] != run["id"]:
            return "A newer run with the same settings is unfinished; resume that one."
        return self._off_its_path(run)

    def _off_its_path(self, run: dict[str, Any]) -> str | None:
        """Return an error sentence if the head is not one of a run's checkpoints, else None."""
        model = self.registry.model(run["model_id"])
        head = model.head_checkpoint_id
        if head == run["state"].get("start"):
            return None
        made = {
            node.id
            for node in self.registry.tree.nodes(model)
            if str(node.metrics.get("idempotency_key") or "").startswith(f"{run['id']}:")
        }
        if head in made:
            return None
        return "The head was moved away from its checkpoints; make one of them the head to resume the run."

    def begin_evaluation(
        self, model: ModelRecord, checkpoints: Sequence[str], tasks: Source, config: TrainConfig
    ) -> Launch:
        """Start an evaluation: tasks played with checkpoints of a model, one job for each. Call on the event loop."""
        work = {**self._work(config, tasks, []), "checkpoints": list(checkpoints)}
        return self.launches.launch(self.who, "evaluation", model, tasks.name, work)

    def refuse_trained(self, model: ModelRecord) -> None:
        """Raise `ConflictError` while a run trains the model: its head must not be moved then."""
        if self.launches.training(model.id) is not None:
            raise ConflictError(
                f"A run is training {model.slug!r} and moves its head at every step. Stop it first, or fork the model."
            )
        self.registry.leases.refuse_if_held(model.id, model.slug, "moved to another checkpoint")

    def source(self, taskset: str, path: str = "") -> Source:
        """Return the tasks of a form: a taskset or, on the user's own machine, a file or folder.
        Raises `UsageError` without tasks, and for a path on another machine.
        """
        if path.strip():
            if not self.own_machine:
                raise UsageError("Tasks of this server are chosen among its tasksets.")
            return file_source(path)
        if not taskset.strip():
            raise UsageError("Choose the tasks.")
        return self.playable.source(taskset)

    def _kept_source(self, recorded: dict[str, Any]) -> Source:
        if recorded["taskset_id"] is None:
            return self.source("", recorded["name"])
        return self.playable.source(recorded["taskset_id"], recorded["version"])

    def _work(
        self, config: TrainConfig, tasks: Source, held_out: Sequence[Source]
    ) -> dict[str, Any]:
        sources = [tasks, *held_out]
        runnable = self.playable.runnable(sources)
        if any(source.taskset_id is None for source in sources) and runnable:
            raise UsageError("Tasks of a file and of a taskset cannot be played in one run.")
        return {
            "config": launched_config(config),
            "tasks": vars(tasks),
            "held_out": [vars(source) for source in held_out],
            "environments": runnable,
        }


def launched_config(config: TrainConfig) -> dict[str, Any]:
    """Return the configuration for the launched process, without a learning rate that was not set: its default is the model's."""
    unset = {"lr"} - config.model_fields_set
    return config.model_dump(mode="json", exclude=unset)
