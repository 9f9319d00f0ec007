"""Checkpoint tree as rows, newest first, each with its part of the drawing.
Each branch has a lane. A linear sequence of checkpoints with deleted files is folded into one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

SHORTEST_FOLD = 4
MOST_LANES = 12
"""Maximum number of lanes; further branches share the last one."""
LANE = 16
HEIGHT = 32


class TreeNode(Protocol):
    """Place of a checkpoint in the tree: its record, or its link alone."""

    @property
    def id(self) -> str: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def folder(self) -> object | None: ...


@dataclass
class Row:
    """Row of the tree."""

    kind: Literal["base", "checkpoint", "fold"]
    node: TreeNode | None = None
    """Checkpoint of the row; for a fold, the last one."""
    count: int = 1
    lane: int = 0
    parent: int | None = None
    """Index of the parent's row, counted from the oldest."""
    paths: list[str] = field(default_factory=list)
    """SVG paths of the row's lines, in a box of height `HEIGHT`."""

    @property
    def x(self) -> int:
        """Horizontal position of the row's mark."""
        return _x(self.lane)


def rows_of(
    nodes: Sequence[TreeNode],
    origin: str | None,
    head: str | None,
    *,
    everything: bool,
    keep: frozenset[str] = frozenset(),
    drawn: slice = slice(None),
) -> list[Row]:
    """Return the rows of `nodes`, which are sorted oldest first; `keep` are never folded.

    `drawn`: the returned rows that get paths.
    """
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
    _draw(rows, range(len(rows))[::-1][drawn][::-1])
    return rows[::-1]


def width_of(rows: Sequence[Row]) -> int:
    """Return the width of the drawing."""
    return _x(max(row.lane for row in rows)) + LANE


def _foldable(nodes: Sequence[TreeNode], head: str | None, keep: frozenset[str]) -> set[str]:
    """Return the checkpoints in linear sequences of at least `SHORTEST_FOLD`."""
    children = Counter(node.parent_id for node in nodes)
    shown = {head, *keep}
    stretches: list[list[str]] = [[]]
    before: str | None = None
    for node in nodes:
        is_dull = node.folder is None and node.id not in shown and children[node.id] == 1
        if not is_dull or node.parent_id != before:
            stretches.append([])
        if is_dull:
            stretches[-1].append(node.id)
        before = node.id
    return {
        node_id for stretch in stretches if len(stretch) >= SHORTEST_FOLD for node_id in stretch
    }


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


def _draw(rows: Sequence[Row], shown: range) -> None:
    """Draw the lines of the rows at `shown`, which are counted from the oldest."""
    middle = HEIGHT // 2
    for place, row in enumerate(rows):
        if row.parent is None or place < shown.start or row.parent >= shown.stop:
            continue
        parent, x = rows[row.parent], _x(row.lane)
        row.paths.append(f"M{x} {middle}V{HEIGHT}")
        for between in rows[max(row.parent + 1, shown.start) : min(place, shown.stop)]:
            between.paths.append(f"M{x} 0V{HEIGHT}")
        if parent.lane == row.lane:
            parent.paths.append(f"M{x} {middle}V0")
        else:
            start = _x(parent.lane)
            parent.paths.append(f"M{start} {middle}C{start} 4 {x} {middle - 2} {x} 0")


def _x(lane: int) -> int:
    return 12 + LANE * lane
