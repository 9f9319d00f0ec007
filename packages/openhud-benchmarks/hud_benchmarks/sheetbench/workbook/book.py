"""`Book`: the workbook of one run, and its values."""

from __future__ import annotations

import copy
import io
import threading
from typing import Any

from openpyxl import Workbook
from openpyxl.worksheet.worksheet import Worksheet

from hud.errors import UsageError
from hud_benchmarks.sheetbench.calculation import Values, office
from hud_benchmarks.sheetbench.workbook.cells import Area, Content, number, shown
from hud_benchmarks.sheetbench.workbook.formulas import for_file, formulas_in

MOST_CELLS = 200_000
"""Cells of the used ranges of a workbook's sheets: calculations and grades read them all."""


class Book:
    """A workbook that changes, with values that are calculated when they are read."""

    def __init__(self, workbook: Workbook) -> None:
        self.workbook = workbook
        self.lock = threading.RLock()
        """Held by one tool call at a time: a model may make several at once."""
        self._values: Values | None = None

    def changed(self) -> None:
        """Forget the values: something was changed."""
        self._values = None

    def sheet(self, name: str) -> Worksheet:
        """Return a sheet; raises `UsageError`."""
        if name in self.workbook.sheetnames:
            return self.workbook[name]
        raise UsageError(
            f"There is no sheet {name!r}; there are {', '.join(map(repr, self.workbook.sheetnames))}."
        )

    def values(self) -> Values:
        """Return the values of all sheets; raises `CalculationError`."""
        if self._values is None:
            self._values = values(self.workbook)
        return self._values

    def shown(self, sheet: Worksheet, area: Area, *, formulas: bool = False) -> list[list[Content]]:
        """Return the rows of an area as tools show them."""
        rows: list[list[Content]] = []
        for row in range(area.top, area.bottom + 1):
            # Not `sheet.cell`, which adds the cell.
            cells = [sheet._cells.get((row, column)) for column in range(area.left, area.right + 1)]
            rows.append([cell and self._shown(sheet, cell, formulas) for cell in cells])
        return rows

    def _shown(self, sheet: Worksheet, cell: Any, formulas: bool) -> Content:
        if cell.data_type != "f":
            return shown(cell.value, date=bool(cell.is_date))
        if formulas:
            return str(cell.value)
        rows = self.values()[sheet.title]
        inside = cell.row <= len(rows) and cell.column <= len(rows[cell.row - 1])
        value = rows[cell.row - 1][cell.column - 1] if inside else ""
        return shown(None if value == "" else value, date=bool(cell.is_date))


def values(workbook: Workbook) -> Values:
    """Return the values of a workbook: recalculated where it has formulas. Raises `CalculationError`."""
    if any(formulas_in(sheet) for sheet in workbook.worksheets):
        return office().recalculate(saved(workbook))[0]
    return {
        sheet.title: [[number(cell) for cell in row] for row in sheet.iter_rows(values_only=True)]
        for sheet in workbook.worksheets
    }


def saved(workbook: Workbook) -> bytes:
    """Return a workbook as the bytes of a file (.xlsx)."""
    formulas = [
        (sheet, place, formula)
        for sheet in workbook.worksheets
        for place, formula in formulas_in(sheet)
        if for_file(formula) != formula
    ]
    for sheet, place, formula in formulas:
        sheet[place].value = for_file(formula)
    stream = io.BytesIO()
    try:
        workbook.save(stream)
    finally:
        for sheet, place, formula in formulas:
            sheet[place].value = formula
    return stream.getvalue()


def restyled(cell: Any, style: str, **changes: Any) -> None:
    """Change some attributes of a cell's font, fill, alignment or protection."""
    restyled_copy = copy.copy(getattr(cell, style))
    for name, value in changes.items():
        setattr(restyled_copy, name, value)
    setattr(cell, style, restyled_copy)
