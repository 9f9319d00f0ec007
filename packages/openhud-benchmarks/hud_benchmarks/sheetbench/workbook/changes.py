"""Changes of a workbook that tools make. Each raises `UsageError` for what a spreadsheet would refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openpyxl.cell.cell import MergedCell
from openpyxl.chart.reference import Reference
from openpyxl.chart.series import Series
from openpyxl.formula.translate import Translator
from openpyxl.utils import quote_sheetname, range_boundaries
from openpyxl.workbook.defined_name import DefinedName
from openpyxl.worksheet.worksheet import Worksheet

from hud.errors import UsageError
from hud_benchmarks.sheetbench.workbook.book import MOST_CELLS, Book
from hud_benchmarks.sheetbench.workbook.cells import Area, Content, address, is_formula, written
from hud_benchmarks.sheetbench.workbook.formulas import check, formulas_in, moved_to

MOST_WRITTEN = 10_000
"""Cells that one call writes."""
MOST_FORMULA_CHARACTERS = 1_000_000
"""Characters of the formulas that one call writes: reading them takes a second for 250,000."""
MOST_CHARACTERS = 20_000_000
"""Characters of a workbook's texts and formulas: calculations and grades read them all."""
_FORBIDDEN = set("[]:*?/\\")


def write(book: Book, sheet: Worksheet, start: str, rows: Sequence[Sequence[Content]]) -> Area:
    """Write rows of contents from a cell on; None empties a cell.

    Raises `UsageError` where one cell is refused; nothing is written then.
    """
    first = Area.parsed(start)
    width = max((len(row) for row in rows), default=0)
    if not width:
        raise UsageError("There is nothing to write: rows must hold at least one cell.")
    area = Area(first.top, first.left, first.top + len(rows) - 1, first.left + width - 1)
    if first.size > 1 and (area.bottom, area.right) != (first.bottom, first.right):
        raise UsageError(f"The rows are {area}, not {first}; give the first cell alone.")
    Area.parsed(str(area))
    _check_writable(book, sheet, area)
    texts = [content for row in rows for content in row if isinstance(content, str)]
    _check_length(book, sum(map(len, texts)), sum(map(len, filter(is_formula, texts))))
    contents = [[_checked(content) for content in row] for row in rows]
    for down, row in enumerate(contents):
        for right, content in enumerate(row):
            cell = sheet.cell(area.top + down, area.left + right)
            cell.value = content
            literal = rows[down][right]
            if isinstance(literal, str) and literal.startswith("'="):
                cell.data_type = "s"
    book.changed()
    return area


def copy(book: Book, source: Worksheet, origin: str, target: Worksheet, to: str) -> Area:
    """Copy contents and number formats; references in formulas move along, and a smaller origin is repeated.

    Raises `UsageError` where one cell is refused; nothing is written then.
    """
    taken, area = Area.parsed(origin), Area.parsed(to)
    height, width = taken.bottom - taken.top + 1, taken.right - taken.left + 1
    if area.size == 1:
        area = Area(area.top, area.left, area.top + height - 1, area.left + width - 1)
    if taken.size > MOST_WRITTEN:
        raise UsageError(f"One call writes at most {MOST_WRITTEN:,} cells.")
    _check_writable(book, target, area)
    check_room(book, source, taken)
    contents = {
        place: (cell.value, cell.data_type, cell.number_format)
        for place in taken.places()
        for cell in [source.cell(*place)]
    }
    copies = -(-area.size // taken.size)
    texts = [(len(value), kind) for value, kind, _ in contents.values() if isinstance(value, str)]
    formulas = sum(length for length, kind in texts if kind == "f")
    _check_length(book, copies * sum(length for length, _ in texts), copies * formulas)
    for row, column in area.places():
        place = taken.top + (row - area.top) % height, taken.left + (column - area.left) % width
        value, kind, number_format = contents[place]
        if kind == "f":
            value = Translator(value, origin=address(*place)).translate_formula(
                address(row, column)
            )
        cell = target.cell(row, column)
        cell.value = value
        if kind == "s":
            cell.data_type = kind
        cell.number_format = number_format
    book.changed()
    return area


def add_sheet(book: Book, name: str) -> None:
    """Add an empty sheet at the end."""
    _check_name(book, name)
    book.workbook.create_sheet(name)
    book.changed()


def rename_sheet(book: Book, old: str, new: str) -> None:
    """Rename a sheet, and the references to it."""
    sheet = book.sheet(old)
    _check_name(book, new)
    sheet.title = new
    for worksheet in book.workbook.worksheets:
        for place, formula in formulas_in(worksheet):
            worksheet[place].value = moved_to(formula, old, new)
        for chart in worksheet._charts:
            for series in chart.series:
                series.val.numRef.f = moved_to(series.val.numRef.f, old, new)
    for defined in book.workbook.defined_names.values():
        defined.value = moved_to(defined.attr_text, old, new)
    book.changed()


def delete_sheet(book: Book, name: str) -> None:
    """Delete a sheet with what it holds; raises `UsageError` for the last one."""
    sheet = book.sheet(name)
    if len(book.workbook.worksheets) == 1:
        raise UsageError("A workbook keeps at least one sheet.")
    book.workbook.remove(sheet)
    book.changed()


def define_name(book: Book, name: str, sheet: Worksheet, area: str) -> None:
    """Define a name for a range of a sheet, or redefine it; raises `UsageError`."""
    parsed_area = Area.parsed(area)
    if not name.isidentifier():
        raise UsageError(f"{name!r} is no name: letters, digits and underscores, no digit first.")
    book.workbook.defined_names[name] = DefinedName(name, attr_text=_absolute(sheet, parsed_area))
    book.changed()


def set_series(
    sheet: Worksheet,
    chart: int,
    series: int,
    values: str,
    categories: str | None,
    source: Worksheet,
) -> None:
    """Give a series of a chart other ranges; charts and series count from 1. Raises `UsageError`."""
    if not 1 <= chart <= len(sheet._charts):
        raise UsageError(f"{sheet.title!r} has {len(sheet._charts)} charts, and no chart {chart}.")
    all_series: list[Series] = sheet._charts[chart - 1].series
    if not 1 <= series <= len(all_series):
        raise UsageError(f"Chart {chart} has {len(all_series)} series, and no series {series}.")
    changed_series = all_series[series - 1]
    changed_series.val.numRef.f = _reference(source, values)
    if categories is not None:
        # Charts keep categories of text and of numbers apart; a reader takes either.
        kind = (
            "strRef"
            if changed_series.cat is not None and changed_series.cat.strRef is not None
            else "numRef"
        )
        if changed_series.cat is None or getattr(changed_series.cat, kind) is None:
            raise UsageError(f"Series {series} of chart {chart} has no categories.")
        getattr(changed_series.cat, kind).f = _reference(source, categories)


def _reference(sheet: Worksheet, area: str) -> str:
    left, top, right, bottom = range_boundaries(str(Area.parsed(area)))
    return str(Reference(sheet, min_col=left, min_row=top, max_col=right, max_row=bottom))


def _absolute(sheet: Worksheet, area: Area) -> str:
    columns = [address(1, column).rstrip("1") for column in (area.left, area.right)]
    first, last = f"${columns[0]}${area.top}", f"${columns[1]}${area.bottom}"
    return f"{quote_sheetname(sheet.title)}!{first if first == last else f'{first}:{last}'}"


def _checked(content: Content) -> Any:
    if is_formula(content):
        assert isinstance(content, str)
        check(content)
    return written(content)


def check_room(book: Book, sheet: Worksheet, area: Area) -> None:
    """Raise `UsageError` where the used ranges of all sheets, from A1 on, would hold more than `MOST_CELLS` cells."""
    others = sum(
        other.max_row * other.max_column for other in book.workbook.worksheets if other is not sheet
    )
    rows, columns = max(sheet.max_row, area.bottom), max(sheet.max_column, area.right)
    if others + rows * columns > MOST_CELLS:
        raise UsageError(
            f"{area} is too far out: sheets may be used up to {MOST_CELLS:,} cells here, counted from A1."
        )


def _check_length(book: Book, characters: int, of_formulas: int) -> None:
    """Raise `UsageError` where a call would write too many characters of formulas, or a workbook have too many of any text."""
    if of_formulas > MOST_FORMULA_CHARACTERS:
        raise UsageError(
            f"One call writes formulas of at most {MOST_FORMULA_CHARACTERS:,} characters together."
        )
    present = sum(
        len(cell.value)
        for sheet in book.workbook.worksheets
        for cell in sheet._cells.values()
        if isinstance(cell.value, str)
    )
    if present + characters > MOST_CHARACTERS:
        raise UsageError(
            f"A workbook has texts and formulas of at most {MOST_CHARACTERS:,} characters here."
        )


def _check_writable(book: Book, sheet: Worksheet, area: Area) -> None:
    if area.size > MOST_WRITTEN:
        raise UsageError(f"One call writes at most {MOST_WRITTEN:,} cells.")
    check_room(book, sheet, area)
    for row, column in area.places():
        cell = sheet._cells.get((row, column))
        if isinstance(cell, MergedCell):
            raise UsageError(
                f"{address(row, column)} is part of a merged range; write its first cell."
            )
        if sheet.protection.sheet and (cell is None or cell.protection.locked):
            raise UsageError(
                f"{sheet.title!r} is protected and {address(row, column)} is locked; nothing was written."
            )


def _check_name(book: Book, name: str) -> None:
    if not 0 < len(name) <= 31 or _FORBIDDEN & set(name) or name.startswith("'"):
        raise UsageError(f"{name!r} is no name of a sheet: 1 to 31 characters, none of []:*?/\\.")
    if name.lower() in map(str.lower, book.workbook.sheetnames):
        raise UsageError(f"There is a sheet {name!r} already.")
