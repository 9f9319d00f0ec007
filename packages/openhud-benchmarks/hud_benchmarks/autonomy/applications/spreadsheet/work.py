"""`Work`: a workbook, what it is to become, and the inputs that are changed to see that its formulas follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from hud_benchmarks.autonomy.applications.spreadsheet.workbook import (
    Cell,
    Sheet,
    Workbook,
    address,
    cells,
)


@dataclass(frozen=True)
class Work:
    """Request, and the workbook before and after it.

    Both have the same sheets; those of `wanted` have as many rows and columns or more.
    """

    request: str
    before: Workbook
    wanted: Workbook
    follows: tuple[str, ...] = ()
    """Columns of numbers that formulas must follow, as sheet and letter: `Prices!B`."""

    def changes(self) -> dict[str, Cell]:
        """Return what the cells to be changed become, by place."""
        return {
            f"{name}!{address(row, column)}": content
            for name, sheet in self.wanted.items()
            for row, contents in enumerate(sheet)
            for column, content in enumerate(contents)
            if content != _at(self.before[name], row, column)
        }

    def other_inputs(self) -> dict[str, float]:
        """Return other numbers for the columns in `follows`, by place: they are no formulas, before and after."""
        inputs = {}
        for name, row, column, content in cells(self.wanted):
            place = address(row, column)
            if f"{name}!{place[0]}" in self.follows and isinstance(content, int | float):
                inputs[f"{name}!{place}"] = content + 1 + row % 3
        return inputs


@dataclass(frozen=True)
class Block:
    """Rectangle of cells to be written, or to be emptied where all are None."""

    place: str
    """Its first cell, such as `Prices!B2`."""
    rows: Sheet


def blocks(before: Workbook, wanted: Workbook) -> list[Block]:
    """Return the cells that differ, as rectangles of neighbouring ones."""
    listed = []
    for name, sheet in wanted.items():
        runs = [
            (row, *columns)
            for row in range(len(sheet))
            for columns in _runs(before[name], sheet, row)
        ]
        # Runs of the same columns in one row after the other are one rectangle.
        keyed = sorted(runs, key=lambda run: (run[1:], run[0]))
        for (first, last, _), group in groupby(keyed, key=lambda run: run[1:]):
            for top, bottom in _neighbours([run[0] for run in group]):
                content = [sheet[row][first : last + 1] for row in range(top, bottom + 1)]
                listed.append(Block(f"{name}!{address(top, first)}", content))
    return listed


def _runs(before: Sheet, wanted: Sheet, row: int) -> Iterator[tuple[int, int, bool]]:
    """Iterate over first and last column of neighbouring cells that differ, all empty or none."""

    def kind(column: int) -> tuple[bool, bool]:
        new = wanted[row][column]
        return new != _at(before, row, column), new is None

    for (differs, empty), group in groupby(range(len(wanted[row])), key=kind):
        columns = list(group)
        if differs:
            yield columns[0], columns[-1], empty


def _at(sheet: Sheet, row: int, column: int) -> Cell:
    return sheet[row][column] if row < len(sheet) and column < len(sheet[row]) else None


def _neighbours(rows: list[int]) -> Iterator[tuple[int, int]]:
    """Iterate over first and last of the numbers that follow each other."""
    for _, group in groupby(enumerate(rows), key=lambda pair: pair[1] - pair[0]):
        numbers = [row for _, row in group]
        yield numbers[0], numbers[-1]
