"""Page that compares two checkpoints of a model on the same tasks, from recorded runs or a new evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import Response

from hud.errors import UsageError
from hud.train.promotion.checkpoint_comparison import Comparison, compared
from hud_dashboard.page import Data, LaunchingPart, Pages, Sent
from hud_dashboard.pages.evaluation import begun, settings_of
from hud_dashboard.pages.models import is_behind, model_shown
from hud_dashboard.pages.train import launch_shown
from hud_platform.models.checkpoint_tree import CheckpointLink
from hud_platform.models.promotion import judge_recorded
from hud_platform.models.records import BASE, ModelRecord
from hud_platform.models.registry import Registry
from hud_platform.store import Store
from hud_platform.store.checkpoint_rewards import MeasuredRun, measured_runs, typical
from hud_platform.store.task_labels import task_labels
from hud_platform.tasksets.rows import TasksetRows

router = Pages()
MOST_TASKS = 40
"""Maximum number of tasks shown as better, and as worse."""
MOST_NAMED = 400
"""Maximum number of checkpoints in the selection, newest first."""
_Text = Annotated[str, Query(max_length=200)]
_Runs = dict[str, list[MeasuredRun]]
"""Measured runs by task."""


@router.page("/models/{model_id}/compare", "model_compare.html")
def compare(
    launching: LaunchingPart,
    model_id: str,
    first: _Text = "",
    second: _Text = "",
    taskset: _Text = "",
) -> Data:
    """Compare two checkpoints (ids, names, `head` or `base`) task by task, on a taskset or on all recorded tasks.
    Default: the base with the head, or the head's parent with the head if base and head share no measured task.
    """
    registry = launching.registry
    store, team = registry.store, launching.who.team_id
    model = registry.model(model_id)
    nodes = registry.tree.links(model)
    slugs = frozenset(TasksetRows(store, team, taskset).slugs()) if taskset else None
    origin = model.config.origin_checkpoint
    played: dict[str | None, _Runs] = {}

    def runs_of(identifier: str | None) -> _Runs:
        if identifier not in played:
            played[identifier] = measured_runs(store, team, model.slug, identifier, slugs)
        return played[identifier]

    after = registry.tree.find(model, second) if second else _newest(model, nodes)
    before = registry.tree.find(model, first) if first else _before(after, nodes, origin, runs_of)
    sides: dict[str, dict[str, Any]] = {}
    runs: dict[str, _Runs] = {}
    names = {node.id: node.name for node in nodes}
    deleted = {node.id for node in nodes if node.folder is None}
    for side, identifier in (("first", before), ("second", after)):
        played_by = runs[side] = runs_of(identifier)
        sides[side] = {
            "reference": identifier or BASE,
            "name": names.get(identifier or "", "base"),
            "is_head": identifier == model.head_checkpoint_id,
            "behind": is_behind(nodes, identifier, model.head_checkpoint_id),
            "deleted": identifier in deleted,
            "tasks": len(played_by),
            "missing": None if slugs is None else sum(not played_by.get(slug) for slug in slugs),
        }
    rewards = {side: _rewards(runs_of_side) for side, runs_of_side in runs.items()}
    is_same = before == after
    comparison = None if is_same else _compared(model, sides, rewards)
    candidate, gate = (None, None) if is_same else _gate(registry, model, sides, slugs)
    launches = [
        launch_shown(launch)
        for launch in launching.of_team()
        if launch.model_id == model.id and launch.kind == "evaluation" and not launch.over
    ]
    return {
        "model": model_shown(model, {}),
        "options": _options(model, nodes),
        "tasksets": [vars(playable) for playable in launching.playable.choices()],
        "taskset": taskset,
        "own_machine": launching.own_machine,
        **sides,
        "same": is_same,
        "comparison": None if comparison is None else comparison.as_dict(),
        "candidate": candidate,
        "gate": gate,
        "tasks": _labelled(store, team, _by_task(runs["first"], runs["second"])),
        "launches": launches,
        "settings": settings_of(launching.runs, model),
    }


@router.action("/models/{model_id}/evaluate", "run")
async def evaluate(
    request: Request, launching: LaunchingPart, model_id: str, fields: Sent
) -> Response:
    """Play a taskset with the checkpoints in the form."""
    form = await request.form()
    checkpoints = list(
        dict.fromkeys(str(checkpoint) for checkpoint in form.getlist("checkpoint") if checkpoint)
    )
    return await begun(launching, model_id, checkpoints, fields)


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


def _newest(model: ModelRecord, nodes: list[CheckpointLink]) -> str | None:
    """Return the head; if the head is the base, the newest checkpoint."""
    if model.head_checkpoint_id in (None, model.config.origin_checkpoint) and nodes:
        return nodes[-1].id
    return model.head_checkpoint_id


def _before(
    after: str | None,
    nodes: list[CheckpointLink],
    origin: str | None,
    runs_of: Callable[[str | None], _Runs],
) -> str | None:
    """Return the base, or the parent of `after` if only the parent was measured on tasks of `after`."""
    if runs_of(origin).keys() & runs_of(after).keys():
        return origin
    parent = next((node.parent_id for node in nodes if node.id == after), None)
    return parent if runs_of(parent).keys() & runs_of(after).keys() else origin


def _gate(
    registry: Registry,
    model: ModelRecord,
    sides: Mapping[str, Any],
    slugs: frozenset[str] | None,
) -> tuple[str | None, str | None]:
    """Return the side that may become the head, and the gate's verdict on it; None if neither side is the head."""
    head = next((side for side in ("first", "second") if sides[side]["is_head"]), None)
    if head is None:
        return None, None
    candidate = "second" if head == "first" else "first"
    reference = sides[candidate]["reference"]
    checkpoint = registry.tree.find(model, reference)
    return candidate, judge_recorded(registry, model, checkpoint, slugs).verdict


def _rewards(runs: _Runs) -> dict[str, list[float]]:
    return {slug: [run.reward for run in runs_of_task] for slug, runs_of_task in runs.items()}


def _by_task(first: _Runs, second: _Runs) -> dict[str, Any]:
    """Return the tasks with higher and with lower rewards in the second, largest change first."""
    before, after = _rewards(first), _rewards(second)
    rows: list[dict[str, Any]] = [
        {
            "slug": slug,
            "first": fmean(before[slug]),
            "second": fmean(after[slug]),
            "change": fmean(after[slug]) - fmean(before[slug]),
            "runs": [len(first[slug]), len(second[slug])],
            "traces": [typical(first[slug]).trace_id, typical(second[slug]).trace_id],
        }
        for slug in before.keys() & after.keys()
    ]
    rows.sort(key=lambda row: (-row["change"], row["slug"]))
    better = [row for row in rows if row["change"] > 0]
    worse = [row for row in reversed(rows) if row["change"] < 0]
    return {
        "better": better[:MOST_TASKS],
        "worse": worse[:MOST_TASKS],
        "counts": [len(better), len(worse), len(rows) - len(better) - len(worse)],
    }


def _labelled(store: Store, team: str, tasks: dict[str, Any]) -> dict[str, Any]:
    """Add the display name of each task, `label`."""
    rows = [*tasks["better"], *tasks["worse"]]
    labels = task_labels(store, team, {row["slug"]: row["traces"][0] for row in rows})
    for row in rows:
        row["label"] = labels[row["slug"]]
    return tasks


def _options(model: ModelRecord, nodes: list[CheckpointLink]) -> list[dict[str, str]]:
    options = [
        {"value": node.id, "label": node.name + (" (files deleted)" if node.folder is None else "")}
        for node in reversed(nodes[-MOST_NAMED:])
    ]
    for option in options:
        if option["value"] == model.head_checkpoint_id:
            option["label"] += " (head)"
    base = "base" + (" (head)" if model.head_checkpoint_id is None else "")
    return [*options, {"value": model.config.origin_checkpoint or BASE, "label": base}]
