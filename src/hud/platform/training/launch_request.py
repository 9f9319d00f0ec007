"""What is launched from the dashboard, made of what a person chose: a training run, its resumption, an evaluation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hud.client.presence import is_gone
from hud.errors import ConflictError, UsageError
from hud.platform.gateway.formats import format_of
from hud.platform.tasksets.playable import Playable, Source, file_source, refuse_shared
from hud.platform.training.launcher import Launch
from hud.platform.training.runs import TrainingRuns
from hud.train.config import TrainConfig

if TYPE_CHECKING:
    from hud.platform.access import Identity
    from hud.platform.models.records import ModelRecord
    from hud.platform.platform import Platform


async def begin_training(
    platform: Platform,
    who: Identity,
    model: ModelRecord,
    start: str,
    config: TrainConfig,
    tasks: Source,
    held_out: Sequence[Source],
) -> Launch:
    """Begin a run at a checkpoint (an id, a name, `head` or `base`), to which the head is moved.

    Raises `UsageError` where the choice cannot be trained, `ConflictError` while somebody trains the model.
    """
    refuse_shared(tasks, held_out)
    if config.reasoning_effort is not None:
        form = await asyncio.to_thread(format_of, model.folder)
        form.chat.reasoning.refuse(config.reasoning_effort)
    registry = platform.registry_of(who.team_id)
    checkpoint = await asyncio.to_thread(registry.tree.find, model, start)
    work = await asyncio.to_thread(_work, platform, who, config, tasks, held_out)
    refuse_trained(platform, model)
    if checkpoint != model.head_checkpoint_id:
        await platform.engine.set_head(model, checkpoint)
    return platform.launches.launch(
        who,
        "training",
        model_id=model.id,
        model=model.slug,
        title=f"{model.slug} on {tasks.name}",
        work={**work, "fresh": True},
    )


async def resume_training(platform: Platform, who: Identity, run: dict[str, Any]) -> Launch:
    """Go on with a run where it stopped. Raises `UsageError` that says why it cannot be."""
    problem = await asyncio.to_thread(why_not_resumed, platform, who.team_id, run)
    if problem is not None:
        raise ConflictError(problem)
    kept = run["state"]["launched"]
    config = TrainConfig(**run["config"])
    model = platform.registry_of(who.team_id).model(run["model_id"])

    def again() -> dict[str, Any]:
        tasks = _source(platform, who.team_id, kept["tasks"])
        held_out = [_source(platform, who.team_id, one) for one in kept["held_out"]]
        return _work(platform, who, config, tasks, held_out)

    launch = platform.launches.launch(
        who,
        "training",
        model_id=model.id,
        model=model.slug,
        title=f"{model.slug} on {kept['tasks']['name']}",
        work={**await asyncio.to_thread(again), "fresh": False},
    )
    launch.run_id = run["id"]
    return launch


def why_not_resumed(platform: Platform, team: str, run: dict[str, Any]) -> str | None:
    """Say why a run cannot be gone on with from here; None: it can."""
    if run["status"] == "finished":
        return "It is finished."
    if platform.launches.training(run["model_id"]) is not None:
        return "Its model is being trained."
    launched = run["state"].get("launched")
    if launched is None:
        return "It was begun by hud train: give the same command again where it was given."
    if run["status"] == "running" and not is_gone(str(launched["by"])):
        mine = platform.launches.of_run(team, run["id"])
        if mine is None or not mine.over:
            return "It runs on another server."
    same = [
        one
        for one in TrainingRuns(platform.store, team).recent(run["model_id"])
        if one["status"] != "finished"
        and one["state"].get("fingerprint") == run["state"].get("fingerprint")
    ]
    if same and same[0]["id"] != run["id"]:
        return "A newer run of the same settings is unfinished; go on with that one."
    return _off_its_path(platform, team, run)


def _off_its_path(platform: Platform, team: str, run: dict[str, Any]) -> str | None:
    """Say so where the head was moved away from a run's checkpoints."""
    registry = platform.registry_of(team)
    model = registry.model(run["model_id"])
    head = model.head_checkpoint_id
    if head == run["state"].get("start"):
        return None
    made = {
        node.id
        for node in registry.tree.nodes(model)
        if str(node.metrics.get("idempotency_key") or "").startswith(f"{run['id']}:")
    }
    if head in made:
        return None
    return (
        "The head was moved away from its checkpoints; make one of them the head to go on with it."
    )


def begin_evaluation(
    platform: Platform,
    who: Identity,
    model: ModelRecord,
    checkpoints: Sequence[str],
    tasks: Source,
    config: TrainConfig,
) -> Launch:
    """Play tasks with checkpoints of a model, each in a job of its own. Call on the event loop."""
    return platform.launches.launch(
        who,
        "evaluation",
        model_id=model.id,
        model=model.slug,
        title=f"{model.slug} on {tasks.name}",
        work={**_work(platform, who, config, tasks, []), "checkpoints": list(checkpoints)},
    )


def refuse_trained(platform: Platform, model: ModelRecord) -> None:
    """Raise `ConflictError` while a run trains the model: its head is not to be moved then."""
    if platform.launches.training(model.id) is not None:
        raise ConflictError(
            f"A run trains {model.slug!r} now, and moves its head at every step. Stop it first, or fork the model."
        )
    platform.registry_of(model.team_id).leases.refuse_if_held(
        model.id, model.slug, "moved to another checkpoint"
    )


def chosen_source(platform: Platform, team: str, taskset: str, path: str) -> Source:
    """Return the tasks that a form names: a taskset or, on one's own machine, a file or folder."""
    if path.strip():
        if platform.config.keys:
            raise UsageError("Tasks of this server are chosen among its tasksets.")
        return file_source(path)
    if not taskset.strip():
        raise UsageError("Choose the tasks.")
    return Playable(platform.store, team).source(taskset)


def _source(platform: Platform, team: str, kept: dict[str, Any]) -> Source:
    if kept["taskset_id"] is None:
        return chosen_source(platform, team, "", kept["name"])
    return Playable(platform.store, team).source(kept["taskset_id"], kept["version"])


def _work(
    platform: Platform,
    who: Identity,
    config: TrainConfig,
    tasks: Source,
    held_out: Sequence[Source],
) -> dict[str, Any]:
    sources = [tasks, *held_out]
    runnable = Playable(platform.store, who.team_id).runnable(sources)
    if any(one.taskset_id is None for one in sources) and runnable:
        raise UsageError("Tasks of a file and of a taskset cannot be played in one run.")
    return {
        "config": config.model_dump(mode="json"),
        "tasks": _told(tasks),
        "held_out": [_told(one) for one in held_out],
        "environments": runnable,
    }


def _told(source: Source) -> dict[str, Any]:
    return {
        "name": source.name,
        "taskset_id": source.taskset_id,
        "version": source.version,
        "rows": list(source.rows),
    }
