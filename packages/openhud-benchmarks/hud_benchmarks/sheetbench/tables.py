"""Tables on sheets, laid out by a seed: another corner, another order of columns, a title above."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from openpyxl import Workbook
from openpyxl.styles import Font
from openpyxl.utils import get_column_letter

from hud_benchmarks.sheetbench.grading.exercise import Cell, Exercise, Value
from hud_benchmarks.sheetbench.workbook.cells import address
from hud_benchmarks.sheetbench.workbook.formulas import quoted

ANSWER = "ANSWER"
"""Sheet of the answers, which has its headings already."""
_BOLD = Font(name="Calibri", size=11, bold=True)


class Table:
    """A table with headings; data rows count from 0."""

    def __init__(self, sheet: str, columns: Sequence[str], top: int, left: int, size: int) -> None:
        self.sheet = sheet
        self.columns = list(columns)
        self.top, self.left, self.size = top, left, size

    def address(self, row: int, column: str) -> str:
        """Return the address of a cell; row -1 is the headings."""
        return address(self.top + 1 + row, self.left + self.columns.index(column))

    def cell(self, row: int, column: str) -> Cell:
        """Return sheet and address of a cell."""
        return self.sheet, self.address(row, column)

    def reference(self, row: int, column: str) -> str:
        """Return a cell as formulas on other sheets have it."""
        return f"{quoted(self.sheet)}!{self.address(row, column)}"

    def column(self, name: str) -> str:
        """Return the data of a column as an absolute range."""
        letter = get_column_letter(self.left + self.columns.index(name))
        first, last = self.top + 1, self.top + self.size
        return f"{quoted(self.sheet)}!${letter}${first}:${letter}${last}"


def empty_workbook() -> Workbook:
    """Return a workbook without a sheet."""
    workbook = Workbook()
    workbook.remove(workbook.active)
    return workbook


def lay(
    workbook: Workbook,
    random: Random,
    sheet: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Value]],
    *,
    shuffled: bool = True,
    title: str = "",
) -> Table:
    """Write a table to a new sheet, and return where it is."""
    worksheet = workbook.create_sheet(sheet)
    order = list(range(len(columns)))
    if shuffled:
        random.shuffle(order)
    top, left = random.choice([1, 3, 4]), random.choice([1, 1, 2])
    if top > 1:
        worksheet.cell(1, left).value = title or f"{sheet}, exported"
    for right, place in enumerate(order):
        heading = worksheet.cell(top, left + right)
        heading.value, heading.font = columns[place], _BOLD
        for down, row in enumerate(rows):
            # An empty cell that is written is a cell, which costs room and time.
            if row[place] is not None:
                worksheet.cell(top + 1 + down, left + right).value = row[place]
        width = max([len(str(row[place])) for row in rows] + [len(columns[place])])
        worksheet.column_dimensions[get_column_letter(left + right)].width = min(width, 40) + 2
    return Table(sheet, [columns[place] for place in order], top, left, len(rows))


def answer_sheet(workbook: Workbook, headings: Sequence[str], name: str = ANSWER) -> None:
    """Add the sheet of the answers with its headings in row 1."""
    sheet = workbook.create_sheet(name)
    for column, heading in enumerate(headings, 1):
        cell = sheet.cell(1, column)
        cell.value, cell.font = heading, _BOLD
        sheet.column_dimensions[get_column_letter(column)].width = max(12, len(heading) + 2)


def assumptions(
    workbook: Workbook, sheet: str, values: Mapping[str, float], top: int
) -> dict[str, str]:
    """Write labelled values to columns A and B of a new sheet; return absolute references by label."""
    worksheet = workbook.create_sheet(sheet)
    worksheet.column_dimensions["A"].width = max(map(len, values)) + 2
    for row, (label, value) in enumerate(values.items(), top):
        worksheet.cell(row, 1).value, worksheet.cell(row, 2).value = label, value
    return {label: f"{quoted(sheet)}!$B${row}" for row, label in enumerate(values, top)}


def want_records(
    exercise: Exercise, rows: Sequence[Sequence[Value]], parts: int = 4, tolerance: float = 0.0051
) -> None:
    """Ask for rows below the headings of the answers, cut into parts of rows that follow each other."""
    size = -(-len(rows) // parts)
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        first = start + 2
        name = f"rows {first} to {first + len(some) - 1}"
        exercise.want_rows(name, ANSWER, f"A{first}", some, tolerance=tolerance)


def want_formulas(
    exercise: Exercise,
    values: Mapping[Cell, Value],
    formulas: Mapping[Cell, str],
    part: Callable[[str], str],
    tolerance: float = 0.0051,
) -> None:
    """Ask for formulas with their values; `part` names the part of a cell by its address."""
    for (sheet, cell), value in values.items():
        exercise.want(part(cell), sheet, cell, value, formulas[sheet, cell], tolerance)


def row_of(cell: str) -> str:
    """Name the part of a cell by its row."""
    return f"row {cell.lstrip('ABCDEFGHIJKLMNOPQRSTUVWXYZ')}"


def column_of(cell: str) -> str:
    """Name the part of a cell by its column."""
    return f"column {cell.rstrip('0123456789')}"
