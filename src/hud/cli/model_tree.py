"""The tree of checkpoints as lines of text: oldest first, one lane for each branch, ▶ at the head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hud.cli.output import number

_SHORTEST_FOLD = 4
"""Fewer uneventful checkpoints in a row than this are drawn one by one."""


def draw_tree(
    model: dict[str, Any], nodes: list[dict[str, Any]], *, everything: bool = True
) -> Iterator[str]:
    """Yield one line for the beginning and one for each checkpoint, in the order in which they were made.

    Unless `everything` is wanted, stretches of checkpoints whose files were deleted are one line.
    """
    lanes: list[str | None] = [None]
    places: dict[str | None, int] = {None: 0}
    origin = model["config"]["origin_checkpoint"]
    if origin is not None:
        places[origin] = 0
        lanes[0] = origin
    began = "began with " + (
        f"checkpoint {origin[:12]} of another model"
        if origin is not None
        else model["config"]["source"] or "its base"
    )
    at_start = not any(node["is_active"] for node in nodes)
    yield f"{'▶' if at_start else '○'} {model['model_name']}  {began}"
    names = {node["id"]: node["name"] for node in nodes}
    width = max((len(node["name"]) for node in nodes), default=0)
    folds = {} if everything else _folds(nodes)
    for place, node in enumerate(nodes):
        parent = node["prev_model_checkpoint_id"]
        home = places.get(parent, 0)
        straight = lanes[home] == parent
        lane = home if straight else len(lanes)
        if not straight:
            lanes.append(None)
        lanes[lane] = node["id"]
        places[node["id"]] = lane
        waiting = _waiting(nodes[place + 1 :], lanes)
        if place in folds:
            if folds[place]:
                yield f"{_graph(node, lane, home, waiting, '┆')} {folds[place]} more steps, files deleted (--all)"
            continue
        branch = "" if straight else f"  from {names.get(parent, 'the beginning')}"
        yield f"{_graph(node, lane, home, waiting)} {node['name']:<{width}}  {describe(node)}{branch}"


def describe(node: dict[str, Any]) -> str:
    """Say what a checkpoint was worth when it was made."""
    metrics = node["metrics"]
    tokens = metrics.get("action_tokens:sum")
    loss = metrics["loss:sum"] / tokens if tokens and "loss:sum" in metrics else None
    step, learned_from = node["training_step"], metrics.get("trained_reward:mean")
    parts = [
        "" if step in (None, node["step"]) else f"training step {step}",
        f"reward {number(node['mean_reward'])}",
        ""
        if learned_from is None or number(learned_from) == number(node["mean_reward"])
        else f"(learned from {number(learned_from)})",
        f"loss {number(loss, 4)}",
        node["loss_fn"] or "",
    ]
    if node["pruned"]:
        parts.append("(files deleted)")
    return "  ".join(part for part in parts if part)


def _folds(nodes: list[dict[str, Any]]) -> dict[int, int]:
    """Return which nodes are folded away: the last of a stretch with its length, the others with 0."""
    children: dict[str | None, int] = {}
    for node in nodes:
        parent = node["prev_model_checkpoint_id"]
        children[parent] = children.get(parent, 0) + 1
    folds: dict[int, int] = {}
    stretch: list[int] = []
    ends: list[dict[str, Any] | None] = [*nodes, None]
    for place, one in enumerate(ends):
        dull = (
            one is not None
            and one["pruned"]
            and not one["is_active"]
            and place > 0
            and one["prev_model_checkpoint_id"] == nodes[place - 1]["id"]
            and children.get(one["id"], 0) == 1
        )
        if dull:
            stretch.append(place)
            continue
        if len(stretch) >= _SHORTEST_FOLD:
            folds |= {**dict.fromkeys(stretch, 0), stretch[-1]: len(stretch)}
        stretch = []
    return folds


def _waiting(later: list[dict[str, Any]], lanes: list[str | None]) -> set[int]:
    """Lanes whose newest node still has children to come."""
    parents = {node["prev_model_checkpoint_id"] for node in later}
    return {place for place, tip in enumerate(lanes) if tip in parents}


def _graph(
    node: dict[str, Any], lane: int, home: int, waiting: set[int], mark: str | None = None
) -> str:
    mark = mark or ("▶" if node["is_active"] else "●")
    cells = []
    for place in range(lane):
        if place < home or lane == home:
            cells.append("│ " if place in waiting else "  ")
        elif place == home:
            cells.append("├─" if place in waiting else "└─")
        else:
            cells.append("┼─" if place in waiting else "──")
    after = [
        ("│" if place in waiting else " ")
        for place in range(lane + 1, max(waiting, default=-1) + 1)
    ]
    return "".join(cells) + " ".join([mark, *after]).rstrip()
