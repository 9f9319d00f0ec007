"""The tree of checkpoints as lines of text: oldest first, one lane for each branch, ▶ at the head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hud.cli.output import Column, count, header, number, row
from hud.train.monitoring.loss_metrics import loss_per_token

_SHORTEST_FOLD = 4
"""Minimum length of a folded stretch of checkpoints."""


def draw_tree(
    model: dict[str, Any], nodes: list[dict[str, Any]], *, everything: bool = True
) -> Iterator[str]:
    """Yield a line for the base, a header, and a row for each checkpoint in the order in which they were made.

    Without `everything`, stretches of checkpoints with deleted files are folded to one line.
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
    prompts = {None: None, **{node["id"]: node["system_prompt"] for node in nodes}}
    rows: list[tuple[str, list[str]]] = []
    folds = {} if everything else _folds(nodes)
    last_child = {node["prev_model_checkpoint_id"]: place for place, node in enumerate(nodes)}
    for place, node in enumerate(nodes):
        parent = node["prev_model_checkpoint_id"]
        home = places.get(parent, 0)
        straight = lanes[home] == parent
        lane = home if straight else len(lanes)
        if not straight:
            lanes.append(None)
        lanes[lane] = node["id"]
        places[node["id"]] = lane
        # Lanes with pending children of their newest node.
        waiting = {other for other, tip in enumerate(lanes) if last_child.get(tip, -1) > place}
        if place in folds:
            if folds[place]:
                graph = _graph(node, lane, home, waiting, "┆")
                rows.append((f"{graph} {folds[place]} more steps, files deleted (--all)", []))
            continue
        branch = None if straight else names.get(parent, "base")
        rows.append((f"{_graph(node, lane, home, waiting)} {node['name']}", _figures(node, branch)))
        if node["system_prompt"] != prompts.get(parent, node["system_prompt"]):
            rows[-1][1][-1] = ", ".join(filter(None, [rows[-1][1][-1], "another system prompt"]))
    if rows:
        yield from _aligned(rows)


def _aligned(rows: list[tuple[str, list[str]]]) -> Iterator[str]:
    """Yield the header and the rows; rows without figures have the length of their text."""
    width = max((len(name) for name, figures in rows if figures), default=0)
    width = max(width, len("  checkpoint"))
    losses = max((len(figures[2]) for _, figures in rows if figures), default=0)
    columns = [
        Column("  checkpoint", width, right=False),
        Column("reward", 6),
        Column("loss", 8),
        Column("loss fn", losses, right=False),
        Column("", 0, right=False),
    ]
    yield header(columns)
    for name, figures in rows:
        yield row(columns, [name, *figures]) if figures else name


def _figures(node: dict[str, Any], branch: str | None) -> list[str]:
    """Return reward, loss and loss function of the step that made a checkpoint, and notes."""
    metrics = node["metrics"]
    step, learned_from = node["training_step"], metrics.get("trained_reward:mean")
    reward = number(node["mean_reward"])
    notes = []
    if branch is not None:
        notes.append(f"from {branch}")
    if step not in (None, node["step"]):
        notes.append(f"training step {step}")
    if learned_from is not None and number(learned_from) != reward:
        notes.append(f"trained runs {number(learned_from)}")
    if node["promotion"] is not None:
        notes.append("promotion forced" if node["promotion"]["forced"] else "promoted")
    if node["pruned"]:
        notes.append("files deleted")
    return [reward, number(loss_per_token(metrics), 4), node["loss_fn"] or "", ", ".join(notes)]


def _folds(nodes: list[dict[str, Any]]) -> dict[int, int]:
    """Return the folded nodes: the last of a stretch with its length, the others with 0."""
    children: dict[str | None, int] = {}
    for node in nodes:
        parent = node["prev_model_checkpoint_id"]
        children[parent] = children.get(parent, 0) + 1
    folds: dict[int, int] = {}
    stretch: list[int] = []
    ends: list[dict[str, Any] | None] = [*nodes, None]
    for place, end in enumerate(ends):
        dull = (
            end is not None
            and end["pruned"]
            and not end["is_active"]
            and place > 0
            and end["prev_model_checkpoint_id"] == nodes[place - 1]["id"]
            and children.get(end["id"], 0) == 1
        )
        if dull:
            stretch.append(place)
            continue
        if len(stretch) >= _SHORTEST_FOLD:
            folds |= {**dict.fromkeys(stretch, 0), stretch[-1]: len(stretch)}
        stretch = []
    return folds


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


_SHOWN = {
    "trained_reward:mean": "reward of trained runs",
    "grad_norm:mean": "gradient norm",
    "entropy:mean": "entropy, nats a token",
    "kl:mean": "KL to the reference, nats a token",
    "clip_fraction:mean": "clipped tokens, share",
    "sampler_gap:mean": "sampler against trainer, nats",
    "policy_lag:mean": "policy lag, steps",
    "tokens:sum": "tokens computed",
    "shared_tokens:sum": "tokens saved by shared prefixes",
}
"""Metrics of a step that `hud models head` shows; `--json` has them all."""


def _value(name: str, value: float) -> str:
    return f"{value:,.0f}" if name.endswith(":sum") else f"{value:.4g}"


def statistics_of(node: dict[str, Any], names: dict[str, str]) -> list[str]:
    """Return a checkpoint's step, metrics and notes, one line each."""
    metrics = node["metrics"]
    counts = [("num_traces", "run"), ("num_datums", "sequence"), ("num_tokens", "token")]
    learned = [count(node[name], noun) for name, noun in counts if node.get(name) is not None]
    promotion = node["promotion"]
    promoted = []
    if promotion is not None:
        how = "forced, held by the gate" if promotion["forced"] else "by the gate"
        promoted = [("promoted", f"{how}: {' '.join(promotion['reasons'])}")]
    rows = [
        ("made", node["created_at"][:16].replace("T", " ")),
        ("from", names.get(node["prev_model_checkpoint_id"] or "", "base")),
        *promoted,
        ("reward", number(node["mean_reward"])),
        ("learned from", ", ".join(learned) or "–"),
        (
            "loss, a token",
            f"{number(loss_per_token(metrics), 4)}  {node['loss_fn'] or ''}".rstrip(),
        ),
        ("learning rate", "–" if node["learning_rate"] is None else f"{node['learning_rate']:g}"),
        *(
            (label, _value(name, metrics[name]))
            for name, label in _SHOWN.items()
            if name in metrics
        ),
    ]
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {value}" for name, value in rows]
