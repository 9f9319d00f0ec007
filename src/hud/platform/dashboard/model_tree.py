"""The tree of checkpoints as rows, the newest first, each with its piece of the drawing.

One lane for each branch. Stretches of checkpoints whose files are gone, and where nothing happened, are one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hud.platform.models.records import CheckpointRecord

SHORTEST_FOLD = 4
MOST_LANES = 12
"""Drawn side by side; branches beyond share the last one."""
LANE = 16
HEIGHT = 32


@dataclass
class Row:
    """One line of the tree."""

    kind: Literal["base", "checkpoint", "fold"]
    node: CheckpointRecord | None = None
    """The checkpoint; of a fold, its last."""
    count: int = 1
    lane: int = 0
    parent: int | None = None
    """Place of the parent's row, counted from the oldest."""
    paths: list[str] = field(default_factory=list)
    """SVG paths of its lines, in a box that is `HEIGHT` high."""

    @property
    def x(self) -> int:
        """Position of its mark."""
        return _x(self.lane)


def rows_of(
    nodes: Sequence[CheckpointRecord],
    origin: str | None,
    head: str | None,
    *,
    everything: bool,
    keep: frozenset[str] = frozenset(),
) -> list[Row]:
    """Return the tree of `nodes`, which come oldest first; `keep` are not folded away."""
    rows = [Row("base")]
    place_of: dict[str | None, int] = {None: 0, origin: 0}
    folds = set() if everything else _foldable(nodes, head, keep)
    stretch: Row | None = None
    for before, node in zip((None, *nodes), nodes, strict=False):
        follows = before is not None and node.parent_id == before.id
        if node.id in folds and stretch is not None and follows:
            stretch.node, stretch.count = node, stretch.count + 1
            place_of[node.id] = place_of[node.parent_id]
            continue
        kind: Literal["checkpoint", "fold"] = "fold" if node.id in folds else "checkpoint"
        row = Row(kind, node, parent=place_of.get(node.parent_id, 0))
        place_of[node.id] = len(rows)
        rows.append(row)
        stretch = row if kind == "fold" else None
    _assign_lanes(rows)
    _draw(rows)
    return rows[::-1]


def width_of(rows: Sequence[Row]) -> int:
    """Return how wide the drawing is."""
    return _x(max(row.lane for row in rows)) + LANE


def _foldable(
    nodes: Sequence[CheckpointRecord], head: str | None, keep: frozenset[str]
) -> set[str]:
    """Return the checkpoints in stretches of `SHORTEST_FOLD` or more where each follows the one before it."""
    children = Counter(node.parent_id for node in nodes)
    kept = {head, *keep}
    stretches: list[list[str]] = [[]]
    before: str | None = None
    for node in nodes:
        is_dull = node.folder is None and node.id not in kept and children[node.id] == 1
        if not is_dull or node.parent_id != before:
            stretches.append([])
        if is_dull:
            stretches[-1].append(node.id)
        before = node.id
    return {one for stretch in stretches if len(stretch) >= SHORTEST_FOLD for one in stretch}


def _assign_lanes(rows: Sequence[Row]) -> None:
    tips: list[int] = [0]
    for place, row in enumerate(rows):
        if row.parent is None:
            continue
        home = rows[row.parent].lane
        if tips[home] == row.parent:
            row.lane = home
        else:
            row.lane = len(tips)
            tips.append(place)
        tips[row.lane] = place
    for row in rows:
        row.lane = min(row.lane, MOST_LANES - 1)


def _draw(rows: Sequence[Row]) -> None:
    middle = HEIGHT // 2
    for place, row in enumerate(rows):
        if row.parent is None:
            continue
        parent, x = rows[row.parent], _x(row.lane)
        row.paths.append(f"M{x} {middle}V{HEIGHT}")
        for between in rows[row.parent + 1 : place]:
            between.paths.append(f"M{x} 0V{HEIGHT}")
        if parent.lane == row.lane:
            parent.paths.append(f"M{x} {middle}V0")
        else:
            start = _x(parent.lane)
            parent.paths.append(f"M{start} {middle}C{start} 4 {x} {middle - 2} {x} 0")


def _x(lane: int) -> int:
    return 12 + LANE * lane
