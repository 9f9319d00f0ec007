"""The tools that make up a spreadsheet, and blocks of its cells.

An environment with a tool `read_range`, whose results have a structured `grid`, and a tool `write_cells` is shown to people as
a grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from hud.trace import ToolSpec

READ, WRITE = "read_range", "write_cells"
"""Names of the tools."""

T = TypeVar("T")


def is_spreadsheet(tools: Iterable[ToolSpec]) -> bool:
    """Return whether tools include those of a spreadsheet."""
    return {READ, WRITE} <= {tool.name for tool in tools}


def cell_name(row: int, column: int) -> str:
    """Return the name of a cell, such as `AB12`; row and column count from 1."""
    return f"{column_letters(column)}{row}"


def column_letters(column: int) -> str:
    """Return the letters of a column, from 1."""
    letters = ""
    while column:
        column, rest = divmod(column - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def write_blocks(cells: Mapping[tuple[int, int], T]) -> Iterator[tuple[str, list[list[T]]]]:
    """Yield rectangles that make up the cells, by row and column: name of the first cell, and rows of contents."""
    left = dict(cells)
    while left:
        top, first = min(left)
        last = first
        while (top, last + 1) in left:
            last += 1
        span, row = range(first, last + 1), top
        block: list[list[T]] = []
        while all((row, column) in left for column in span):
            block.append([left.pop((row, column)) for column in span])
            row += 1
        yield cell_name(top, first), block
