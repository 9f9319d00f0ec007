"""Two checkpoints of a model on the same tasks: from what is recorded, or from an evaluation that is launched here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query, Request
from fastapi.responses import Response

from hud.errors import UsageError
from hud.platform.access import caller
from hud.platform.dashboard.page import Pages, see
from hud.platform.dashboard.pages.models import is_behind, model_shown
from hud.platform.dashboard.pages.train import launch_shown
from hud.platform.dashboard.rendering import page
from hud.platform.gate_verdict import verdict_of
from hud.platform.launch_training import begin_evaluation, chosen_source
from hud.platform.playable import Playable, Source
from hud.platform.records import BASE
from hud.platform.store.checkpoint_rewards import rewards_of
from hud.platform.taskset_rows import TasksetRows
from hud.platform.training_runs import TrainingRuns
from hud.train.comparison import Comparison, compared
from hud.train.config import TrainConfig, make_config

if TYPE_CHECKING:
    from hud.platform.platform import Platform
    from hud.platform.records import ModelRecord

router = Pages()
MOST_TASKS = 40
"""Shown of those that got better, and of those that got worse."""
MOST_NAMED = 400
"""Checkpoints to choose from, the newest."""
_PLAYED_AS = (
    *("max_turns", "max_tokens", "eval_temperature", "eval_group", "seed"),
    *("system_prompt", "reasoning_effort"),
)
"""Settings of the last training run under which evaluations are played, so that all scores mean the same."""
_Text = Annotated[str, Query(max_length=200)]


@router.page("/models/{model_id}/compare")
def compare(
    request: Request, model_id: str, first: _Text = "head", second: _Text = "", taskset: _Text = ""
) -> Response:
    """Compare two checkpoints (ids, names, `head` or `base`) task by task, on a taskset or on all that is recorded."""
    platform, team = _platform(request), caller(request).team_id
    registry = platform.registry_of(team)
    model = registry.model(model_id)
    nodes = registry.tree.nodes(model)
    slugs = _slugs(platform, team, taskset) if taskset else None
    chosen = {"first": first, "second": second or BASE}
    sides, rewards = {}, {}
    names = {node.id: node.name for node in nodes}
    for side, reference in chosen.items():
        identifier = registry.tree.find(model, reference)
        sides[side] = {
            "reference": identifier or BASE,
            "name": names.get(identifier or "", "the beginning"),
            "is_head": identifier == model.head_checkpoint_id,
            "behind": is_behind(nodes, identifier, model.head_checkpoint_id),
        }
        rewards[side] = rewards_of(platform.store, team, model.slug, identifier, slugs)
        missing = None if slugs is None else sum(not rewards[side].get(slug) for slug in slugs)
        sides[side] |= {"tasks": len(rewards[side]), "missing": missing}
    found = _compared(model, sides, rewards)
    launches = [
        launch_shown(one)
        for one in platform.launches.of_team(team)
        if one.model_id == model.id and one.kind == "evaluation" and not one.over
    ]
    data = {
        "model": model_shown(model, {}),
        "options": _options(model, nodes),
        "tasksets": [vars(one) for one in Playable(platform.store, team).choices()],
        "taskset": taskset,
        "own_machine": not platform.config.keys,
        **sides,
        "comparison": None if found is None else {**asdict(found), "verdict": found.verdict},
        "gate": verdict_of(model.slug, rewards["first"], rewards["second"]).name,
        "tasks": _by_task(rewards["first"], rewards["second"]),
        "launches": launches,
        "settings": _settings(platform, team, model),
    }
    return page(request, "model_compare.html", data)


@router.action("/models/{model_id}/evaluate", "run")
async def evaluate(request: Request, model_id: str) -> Response:
    """Play a taskset with the checkpoints that the form names."""
    platform, who = _platform(request), caller(request)
    form = await request.form()
    given = {name: str(form.get(name) or "") for name in form}
    checkpoints = list(dict.fromkeys(str(one) for one in form.getlist("checkpoint") if one))

    def look() -> tuple[ModelRecord, Source, TrainConfig]:
        registry = platform.registry_of(who.team_id)
        model = registry.model(model_id)
        if not checkpoints:
            raise UsageError("Choose a checkpoint to evaluate.")
        for reference in checkpoints:
            identifier = registry.tree.find(model, reference)
            registry.weights(model, identifier)
        tasks = chosen_source(
            platform, who.team_id, given.get("taskset", ""), given.get("path", "")
        )
        values = _settings(platform, who.team_id, model)
        values |= {
            name: given[name].strip()
            for name in ("eval_group", "max_turns", "max_tokens")
            if given.get(name, "").strip()
        }
        config = make_config({"model": model.slug, "tasks": tasks.name, **values}, "The evaluation")
        return model, tasks, config

    model, tasks, config = await asyncio.to_thread(look)
    made = begin_evaluation(platform, who, model, checkpoints, tasks, config)
    return see(f"/train/launches/{made.id}")


def _compared(
    model: ModelRecord, sides: Mapping[str, Any], rewards: Mapping[str, Any]
) -> Comparison | None:
    try:
        return compared(
            model.slug,
            sides["first"]["name"],
            sides["second"]["name"],
            rewards["first"],
            rewards["second"],
        )
    except UsageError:
        return None


def _by_task(first: Mapping[str, list[float]], second: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return the tasks that got better and worse from the first to the second, the largest change first."""
    rows: list[dict[str, Any]] = [
        {
            "slug": slug,
            "first": fmean(first[slug]),
            "second": fmean(second[slug]),
            "change": fmean(second[slug]) - fmean(first[slug]),
            "runs": [len(first[slug]), len(second[slug])],
        }
        for slug in first.keys() & second.keys()
    ]
    rows.sort(key=lambda row: (-row["change"], row["slug"]))
    better = [row for row in rows if row["change"] > 0]
    worse = [row for row in reversed(rows) if row["change"] < 0]
    return {
        "better": better[:MOST_TASKS],
        "worse": worse[:MOST_TASKS],
        "counts": [len(better), len(worse), len(rows) - len(better) - len(worse)],
    }


def _options(model: ModelRecord, nodes: list[Any]) -> list[dict[str, str]]:
    found = [
        {"value": node.id, "label": node.name + (" (files pruned)" if node.folder is None else "")}
        for node in reversed(nodes[-MOST_NAMED:])
    ]
    for option in found:
        if option["value"] == model.head_checkpoint_id:
            option["label"] += " (head)"
    base = "the beginning" + (" (head)" if model.head_checkpoint_id is None else "")
    return [*found, {"value": model.config.origin_checkpoint or BASE, "label": base}]


def _settings(platform: Platform, team: str, model: ModelRecord) -> dict[str, Any]:
    """Return how evaluations of a model are played: as its last training run was scored."""
    runs, _ = TrainingRuns(platform.store, team).page(model.id, 1, 0)
    config = runs[0]["config"] if runs else {}
    known = {name: config[name] for name in _PLAYED_AS if config.get(name) is not None}
    return {"max_turns": 10, "max_tokens": 256, "eval_group": 1, **known}


def _slugs(platform: Platform, team: str, taskset: str) -> frozenset[str]:
    return frozenset(TasksetRows(platform.store, team, taskset).slugs())


def _platform(request: Request) -> Platform:
    platform: Platform = request.app.state.platform
    return platform
