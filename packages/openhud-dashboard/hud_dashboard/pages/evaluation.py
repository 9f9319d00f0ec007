"""Form that launches an evaluation: checkpoints of a model play tasks, one job for each checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from hud.errors import NotFoundError, UsageError
from hud.train.config import TrainConfig, make_config
from hud_dashboard.launching.launch_request import Launching
from hud_dashboard.page import Data, LaunchingPart, Pages, Sent, see
from hud_dashboard.rendering import page
from hud_platform.models.records import BASE, ModelRecord
from hud_platform.models.registry import Registry
from hud_platform.tasksets.playable import Source
from hud_platform.training.runs import TrainingRuns

router = Pages()
MOST_CHECKPOINTS = 200
"""Maximum number of checkpoints in the selection, newest first."""
SETTINGS = {
    "eval_group": ("Runs of each task", "At least 2 show which tasks have signal."),
    "max_turns": ("Turns in a run, at most", ""),
    "max_tokens": ("Tokens in a turn, at most", ""),
    "eval_temperature": ("Temperature", ""),
    "seed": ("Seed", "Seed of sampling: the same weights sample the same rollouts."),
}
"""Label and hint of the form's fields, by name in `TrainConfig`."""
_PLAYED_AS = (*SETTINGS, "system_prompt", "reasoning_effort")


@router.page("/jobs/new", "evaluation.html")
def new(request: Request, launching: LaunchingPart) -> Data:
    """The form, prefilled from the query: model, checkpoint, taskset, settings."""
    launching.who.require("run")
    return _form(launching, dict(request.query_params), "")


@router.action("/jobs", "run")
async def evaluate(request: Request, launching: LaunchingPart, form: Sent) -> Response:
    """Launch the evaluation, or show the form again with the error."""
    try:
        if not form.get("model"):
            raise UsageError("Choose a model to evaluate.")
        return await begun(launching, form["model"], [form.get("checkpoint") or "head"], form)
    except (UsageError, NotFoundError) as error:
        data = await asyncio.to_thread(_form, launching, form, str(error))
        return page(request, "evaluation.html", data, 400)


async def begun(
    launching: Launching, model_id: str, checkpoints: Sequence[str], form: Mapping[str, str]
) -> Response:
    """Launch the evaluation described by a form, and redirect to it."""

    def look() -> tuple[ModelRecord, Source, TrainConfig]:
        registry = launching.registry
        model = registry.model(model_id)
        if not checkpoints:
            raise UsageError("Choose a checkpoint to evaluate.")
        for reference in checkpoints:
            registry.weights(model, registry.tree.find(model, reference))
        tasks = launching.source(form.get("taskset", ""), form.get("path", ""))
        values = settings_of(launching.runs, model)
        values |= {name: form[name].strip() for name in SETTINGS if form.get(name, "").strip()}
        config = make_config({"model": model.slug, "tasks": tasks.name, **values}, "The evaluation")
        return model, tasks, config

    model, tasks, config = await asyncio.to_thread(look)
    made = launching.begin_evaluation(model, checkpoints, tasks, config)
    return see(f"/train/launches/{made.id}")


def settings_of(runs: TrainingRuns, model: ModelRecord) -> dict[str, Any]:
    """Return the default settings of a model's evaluations: those of its last training run."""
    recent, _ = runs.page(model.id, 1, 0)
    config = recent[0]["config"] if recent else {}
    settings = {name: config[name] for name in _PLAYED_AS if config.get(name) is not None}
    return {"max_turns": 10, "max_tokens": 256, "eval_group": 1, **settings}


def checkpoint_options(registry: Registry, model: ModelRecord) -> list[dict[str, str]]:
    """Return the checkpoints to choose from, newest first, and the base."""
    nodes = [node for node in registry.tree.links(model) if node.folder is not None]
    newest = reversed(nodes[-MOST_CHECKPOINTS:])
    options = [{"value": node.id, "label": node.name} for node in newest]
    return [*options, {"value": BASE, "label": "base"}]


def _form(launching: Launching, form: Mapping[str, str], problem: str) -> Data:
    registry = launching.registry
    models = [model for model in registry.models() if model.config.provider is None]
    model = next((model for model in models if model.slug == form.get("model")), None)
    checkpoints: list[dict[str, str]] = []
    values: dict[str, Any] = {"eval_group": 4, "max_turns": 10, "max_tokens": 256}
    if model is not None:
        checkpoints = checkpoint_options(registry, model)
        values = settings_of(launching.runs, model)
    return {
        "models": [model.slug for model in models],
        "model": "" if model is None else model.slug,
        "checkpoints": checkpoints,
        "checkpoint": form.get("checkpoint", ""),
        "tasksets": [vars(taskset) for taskset in launching.playable.choices()],
        "taskset": form.get("taskset", ""),
        "file": form.get("path", ""),
        "own_machine": launching.own_machine,
        "settings": [
            {
                "name": name,
                "label": label,
                "hint": hint,
                "value": form.get(name) or values.get(name, ""),
            }
            for name, (label, hint) in SETTINGS.items()
        ],
        "problem": problem,
    }
