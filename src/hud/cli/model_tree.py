"""The tree of checkpoints as lines of text: oldest first, one lane for each branch, ▶ at the head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hud.cli.output import number


def draw_tree(model: dict[str, Any], nodes: list[dict[str, Any]]) -> Iterator[str]:
    """Yield one line for the beginning and one for each checkpoint, in the order in which they were made."""
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
        branch = "" if straight else f"  from {names.get(parent, 'the beginning')}"
        yield f"{_graph(node, lane, home, waiting)} {node['name']:<{width}}  {describe(node)}{branch}"


def describe(node: dict[str, Any]) -> str:
    """Say what a checkpoint was worth when it was made."""
    metrics = node["metrics"]
    tokens = metrics.get("action_tokens:sum")
    loss = metrics["loss:sum"] / tokens if tokens and "loss:sum" in metrics else None
    parts = [
        f"reward {number(node['mean_reward'])}",
        f"loss {number(loss, 4)}",
        node["loss_fn"] or "",
    ]
    if node["pruned"]:
        parts.append("(files pruned)")
    return "  ".join(part for part in parts if part)


def _waiting(later: list[dict[str, Any]], lanes: list[str | None]) -> set[int]:
    """Lanes whose newest node still has children to come."""
    parents = {node["prev_model_checkpoint_id"] for node in later}
    return {place for place, tip in enumerate(lanes) if tip in parents}


def _graph(node: dict[str, Any], lane: int, home: int, waiting: set[int]) -> str:
    mark = "▶" if node["is_active"] else "●"
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
