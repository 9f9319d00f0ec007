"""Form that launches a training run, and its submission."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from hud.errors import HudError, NotFoundError, UsageError
from hud.platform.dashboard.page import Data, LaunchingPart, Pages, Sent, see
from hud.platform.dashboard.pages import train_form
from hud.platform.launching.launch_request import Launching
from hud.platform.models.records import ModelRecord
from hud.platform.models.registry import Registry
from hud.platform.tasksets.playable import Source

router = Pages()


@router.page("/train/new", "train_new.html")
def new(request: Request, launching: LaunchingPart) -> Data:
    """The form, prefilled from the query: model, start, taskset, and settings by name."""
    launching.who.require("train")
    given = {name: value for name, value in request.query_params.items() if name != "held_out"}
    chosen = request.query_params.getlist("held_out")
    return _form(launching, given, chosen, {})


@router.action("/train", "train", "train_new.html")
async def launch(request: Request, launching: LaunchingPart, given: Sent) -> Response | Data:
    """Launch the run, or show the form again with its problems."""
    chosen = [str(one) for one in (await request.form()).getlist("held_out")]
    try:
        place, problems = await _launch(launching, given, chosen)
    except (UsageError, NotFoundError) as error:
        place, problems = "", {"": str(error)}
    if problems:
        return await asyncio.to_thread(_form, launching, given, chosen, problems)
    return see(place)


async def _launch(
    launching: Launching, given: Mapping[str, str], chosen: list[str]
) -> tuple[str, dict[str, str]]:
    problems: dict[str, str] = {}

    def look() -> tuple[ModelRecord | None, Source | None, list[Source]]:
        model = tasks = None
        held_out: list[Source] = []
        try:
            model = _trainable(launching.registry, given.get("model", ""))
        except HudError as error:
            problems["model"] = str(error)
        try:
            tasks = launching.source(given.get("taskset", ""), given.get("path", ""))
        except HudError as error:
            problems["tasks"] = str(error)
        try:
            held_out = [launching.source(one) for one in chosen]
            path = given.get("held_out_path", "")
            if path.strip():
                held_out.append(launching.source("", path))
        except HudError as error:
            problems["held_out"] = str(error)
        return model, tasks, held_out

    model, tasks, held_out = await asyncio.to_thread(look)
    names = [one.name for one in held_out]
    config, wrong = train_form.config_of(
        given, model.slug if model else "model", tasks.name if tasks else "tasks", names
    )
    problems |= wrong
    if config is None or model is None or tasks is None or problems:
        return "", problems
    start = given.get("start", "").strip() or "head"
    made = await launching.begin_training(model, start, config, tasks, held_out)
    return f"/train/launches/{made.id}", {}


def _form(
    launching: Launching, given: Mapping[str, str], chosen: list[str], problems: Mapping[str, str]
) -> Data:
    models = [one for one in launching.registry.models() if one.config.provider is None]
    model = next((one for one in models if one.slug == given.get("model")), None)
    choices = launching.playable.choices()
    return {
        "models": [one.slug for one in models],
        "model": model.slug if model else "",
        "starts": _starts(launching.registry, model),
        "start": given.get("start") or "head",
        "tasksets": [vars(one) for one in choices],
        "taskset": given.get("taskset", ""),
        "held_out": chosen,
        "file": given.get("path", ""),
        "held_out_path": given.get("held_out_path", ""),
        "own_machine": launching.own_machine,
        "groups": {
            title: [vars(one) for one in fields]
            for title, fields in train_form.fields(given, problems).items()
        },
        "problems": dict(problems),
    }


def _starts(registry: Registry, model: ModelRecord | None) -> list[dict[str, Any]]:
    """Return the possible starts of a run: the head, the base, and checkpoints with files."""
    if model is None:
        return [{"value": "head", "label": "the head"}]
    nodes = [node for node in registry.tree.nodes(model) if node.folder]
    head = next((node.name for node in nodes if node.id == model.head_checkpoint_id), "its base")
    found = [
        {"value": "head", "label": f"the head ({head})"},
        {"value": "base", "label": "the base"},
    ]
    for node in reversed(nodes):
        if node.id != model.head_checkpoint_id:
            reward = "" if node.mean_reward is None else f" · reward {node.mean_reward:.3f}"
            found.append({"value": node.id, "label": f"{node.name}{reward}"})
    return found


def _trainable(registry: Registry, slug: str) -> ModelRecord:
    if not slug.strip():
        raise UsageError("Choose a model.")
    model = registry.model(slug)
    if model.config.provider is not None:
        raise UsageError(f"{model.slug!r} is a provider's model and cannot be trained here.")
    return model
