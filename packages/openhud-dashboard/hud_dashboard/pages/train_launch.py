"""Form that launches a training run, and its submission."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from hud.errors import HudError, NotFoundError, UsageError
from hud_dashboard.launching.launch_request import Launching
from hud_dashboard.page import Data, LaunchingPart, Pages, Sent, see
from hud_dashboard.pages import train_form
from hud_platform.models.records import ModelRecord
from hud_platform.models.registry import Registry
from hud_platform.tasksets.playable import Source

router = Pages()


@router.page("/train/new", "train_new.html")
def new(request: Request, launching: LaunchingPart) -> Data:
    """The form, prefilled from the query: model, start, taskset, and settings by name."""
    launching.who.require("train")
    form = {name: value for name, value in request.query_params.items() if name != "held_out"}
    chosen = request.query_params.getlist("held_out")
    return _form(launching, form, chosen, {})


@router.action("/train", "train", "train_new.html")
async def launch(request: Request, launching: LaunchingPart, form: Sent) -> Response | Data:
    """Launch the run, or show the form again with its problems."""
    chosen = [str(taskset_id) for taskset_id in (await request.form()).getlist("held_out")]
    try:
        place, problems = await _launch(launching, form, chosen)
    except (UsageError, NotFoundError) as error:
        place, problems = "", {"": str(error)}
    if problems:
        return await asyncio.to_thread(_form, launching, form, chosen, problems)
    return see(place)


async def _launch(
    launching: Launching, form: Mapping[str, str], chosen: list[str]
) -> tuple[str, dict[str, str]]:
    problems: dict[str, str] = {}

    def look() -> tuple[ModelRecord | None, Source | None, list[Source]]:
        model = tasks = None
        held_out: list[Source] = []
        try:
            model = _trainable(launching.registry, form.get("model", ""))
        except HudError as error:
            problems["model"] = str(error)
        try:
            tasks = launching.source(form.get("taskset", ""), form.get("path", ""))
        except HudError as error:
            problems["tasks"] = str(error)
        try:
            held_out = [launching.source(taskset_id) for taskset_id in chosen]
            path = form.get("held_out_path", "")
            if path.strip():
                held_out.append(launching.source("", path))
        except HudError as error:
            problems["held_out"] = str(error)
        return model, tasks, held_out

    model, tasks, held_out = await asyncio.to_thread(look)
    names = [source.name for source in held_out]
    config, wrong = train_form.config_of(
        form, model.slug if model else "model", tasks.name if tasks else "tasks", names
    )
    problems |= wrong
    if config is None or model is None or tasks is None or problems:
        return "", problems
    start = form.get("start", "").strip() or "head"
    made = await launching.begin_training(model, start, config, tasks, held_out)
    return f"/train/launches/{made.id}", {}


def _form(
    launching: Launching, form: Mapping[str, str], chosen: list[str], problems: Mapping[str, str]
) -> Data:
    models = [model for model in launching.registry.models() if model.config.provider is None]
    model = next((model for model in models if model.slug == form.get("model")), None)
    choices = launching.playable.choices()
    return {
        "models": [choice.slug for choice in models],
        "model": model.slug if model else "",
        "starts": _starts(launching.registry, model),
        "start": form.get("start") or "head",
        "tasksets": [vars(model) for model in choices],
        "taskset": form.get("taskset", ""),
        "held_out": chosen,
        "file": form.get("path", ""),
        "held_out_path": form.get("held_out_path", ""),
        "own_machine": launching.own_machine,
        "groups": {
            title: [vars(field) for field in fields]
            for title, fields in train_form.fields(form, problems).items()
        },
        "problems": dict(problems),
    }


def _starts(registry: Registry, model: ModelRecord | None) -> list[dict[str, Any]]:
    """Return the possible starts of a run: the head, the base, and checkpoints with files."""
    if model is None:
        return [{"value": "head", "label": "the head"}]
    nodes = [node for node in registry.tree.nodes(model) if node.folder]
    head = next((node.name for node in nodes if node.id == model.head_checkpoint_id), "its base")
    options = [
        {"value": "head", "label": f"the head ({head})"},
        {"value": "base", "label": "the base"},
    ]
    for node in reversed(nodes):
        if node.id != model.head_checkpoint_id:
            reward = "" if node.mean_reward is None else f" · reward {node.mean_reward:.3f}"
            options.append({"value": node.id, "label": f"{node.name}{reward}"})
    return options


def _trainable(registry: Registry, slug: str) -> ModelRecord:
    if not slug.strip():
        raise UsageError("Choose a model.")
    model = registry.model(slug)
    if model.config.provider is not None:
        raise UsageError(f"{model.slug!r} is a provider's model and cannot be trained here.")
    return model
