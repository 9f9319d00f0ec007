"""A spreadsheet as a person sees it on a page: a grid of cells from the last result, and edits of it as tool calls.

Cells that were changed on the page are written as rectangles.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from hud.environment.tools.spreadsheet import column_letters, write_blocks
from hud.errors import UsageError
from hud_dashboard.human_baseline.session import Move

MOST_CELLS = 3_000
"""Cells that the page shows as a grid."""
SPARE_ROWS, SPARE_COLUMNS = 8, 2
"""Empty rows and columns that are shown beyond the used ones."""
PREFIX = "cell."
"""Before the names of the fields of cells: `cell.ROW.COLUMN`."""


class Grid(BaseModel):
    """Cells of a sheet as `read_range` returns them: `structured_content["grid"]`."""

    sheet: str
    sheets: list[str]
    show: str = "values"
    number: int = 0
    """Number of the move that read it."""
    top: int = Field(ge=1)
    left: int = Field(ge=1)
    """Row and column of the first cell, from 1."""
    rows: list[list[str | int | float | bool | None]]

    def text(self, row: int, column: int) -> str:
        """Return a cell as it is typed; empty outside the cells that were read."""
        down, right = row - self.top, column - self.left
        inside = 0 <= down < len(self.rows) and 0 <= right < len(self.rows[down])
        return shown(self.rows[down][right]) if inside else ""

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the page's grid, which begins at A1."""
        width = max(map(len, self.rows), default=0)
        return self.top + len(self.rows) - 1 + SPARE_ROWS, self.left + width - 1 + SPARE_COLUMNS


def last_grid(moves: Sequence[Move]) -> Grid | None:
    """Return the cells that were read last; None where none were."""
    for move in reversed(moves):
        content = move.result.structured_content
        if content is not None and "grid" in content:
            try:
                return Grid.model_validate({**content["grid"], "number": move.number})
            except (TypeError, ValidationError):
                return None
    return None


def as_page(grid: Grid) -> dict[str, Any]:
    """Return a grid as the page's template takes it."""
    rows, columns = grid.size
    too_large = rows * columns > MOST_CELLS
    return {
        "number": grid.number,
        "sheet": grid.sheet,
        "sheets": grid.sheets,
        "show": grid.show,
        "too_large": too_large,
        "letters": []
        if too_large
        else [column_letters(column) for column in range(1, columns + 1)],
        "rows": []
        if too_large
        else [
            [grid.text(row, column) for column in range(1, columns + 1)]
            for row in range(1, rows + 1)
        ],
    }


def edits(grid: Grid, form: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments of the `write_cells` calls that make a grid as a form has it.

    Raises `UsageError` where cells were read since the form was shown.
    """
    if form.get("number") != str(grid.number):
        raise UsageError("The sheet was read again meanwhile; type the cells again.")
    changed: dict[tuple[int, int], Any] = {}
    rows, columns = grid.size
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            text = form.get(f"{PREFIX}{row}.{column}")
            if isinstance(text, str) and text != grid.text(row, column):
                changed[row, column] = typed(text)
    return [
        {"sheet": grid.sheet, "start": start, "rows": block}
        for start, block in write_blocks(changed)
    ]


def typed(text: str) -> Any:
    """Return what was typed into a cell as a tool takes it: a number, a truth value, nothing, or the text."""
    plain = text.strip()
    if plain.upper() in ("TRUE", "FALSE"):
        return plain.upper() == "TRUE"
    try:
        value = float(plain)
    except ValueError:
        return text or None
    if not math.isfinite(value) or "_" in plain:
        return text
    return int(value) if value.is_integer() and "e" not in plain.lower() else value


def shown(value: Any) -> str:
    """Return a cell's content so that `typed` gives it back; an apostrophe marks a text that looks like a number."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return value if isinstance(typed(value), str) else f"'{value}"
    return json.dumps(value)
