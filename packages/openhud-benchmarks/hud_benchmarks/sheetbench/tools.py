"""The tools of a spreadsheet: reading and writing ranges, sheets, formats, names, charts."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, Literal

from openpyxl.styles import PatternFill
from openpyxl.utils import get_column_letter

from hud.errors import UsageError
from hud.trace import TextContent, ToolResult
from hud_benchmarks.sheetbench.workbook import changes
from hud_benchmarks.sheetbench.workbook.book import restyled
from hud_benchmarks.sheetbench.workbook.cells import Area, Content, address, is_formula
from hud_benchmarks.sheetbench.workbook.part import BookPart
from hud_benchmarks.sheetbench.workbook.state import chart_references

MOST_READ = 4_000
"""Cells that one call reads."""
MOST_FOUND = 100


def tools(books: BookPart) -> list[Callable[..., Any]]:
    """Return the tools over the workbook of the current run."""

    def list_sheets() -> str:
        """List the sheets with their used ranges, charts and protection, and the defined names."""
        lines = []
        for sheet in books.book.workbook.worksheets:
            notes = [f"{sheet.title}: {sheet.calculate_dimension()}"]
            notes += ["protected"] if sheet.protection.sheet else []
            notes += [f"merged {area}" for area in sheet.merged_cells.ranges]
            for place, chart in enumerate(sheet._charts, 1):
                series = "; ".join(
                    f"series {n} values {values} categories {categories or 'none'}"
                    for n, (categories, values) in enumerate(chart_references(chart), 1)
                )
                notes.append(f"chart {place} ({series})")
            lines.append(", ".join(notes))
        for name, defined in books.book.workbook.defined_names.items():
            lines.append(f"name {name}: {defined.attr_text}")
        return "\n".join(lines)

    def read_range(
        sheet: str = "", range: str = "", show: Literal["values", "formulas"] = "values"
    ) -> ToolResult:
        """Read cells as rows of JSON: texts, numbers, dates as YYYY-MM-DD, times as HH:MM:SS, null for an empty cell.

        An apostrophe before a text marks one that looks like a date, a time or a formula and is none.

        Args:
            sheet: Name of the sheet; empty for the first one.
            range: Cells such as B2:D10; empty for all that are used.
            show: Calculated values, or the formulas of cells that have one.
        """
        worksheet = books.book.sheet(sheet or books.book.workbook.sheetnames[0])
        area = Area.parsed(range or worksheet.calculate_dimension())
        if area.size > MOST_READ:
            raise UsageError(f"{area} has {area.size:,} cells; read at most {MOST_READ:,} at once.")
        rows = books.book.shown(worksheet, area, formulas=show == "formulas")
        letters = " ".join(get_column_letter(column) for column in _numbers(area.left, area.right))
        lines = [f"{area.top + down}: {_json(row)}" for down, row in enumerate(rows)]
        text = "\n".join([f"{worksheet.title}!{area}, columns {letters}", *lines])
        # For people, who see a grid.
        grid = {"sheet": worksheet.title, "sheets": books.book.workbook.sheetnames, "show": show}
        grid |= {"top": area.top, "left": area.left, "rows": rows}
        return ToolResult(content=[TextContent(text=text)], structured_content={"grid": grid})

    def write_cells(sheet: str, start: str, rows: list[list[Content]]) -> str:
        """Write rows of cells from a first cell on, and return the values of the formulas among them.

        A text that begins with = is a formula, in English with commas between arguments; one in the form YYYY-MM-DD is a
        date, in the form HH:MM a time; one that begins with an apostrophe is kept as text. Numbers are JSON numbers. null empties a cell.

        Args:
            sheet: Name of the sheet.
            start: First cell, such as B2.
            rows: Rows of cells, such as [["Total", 12.5], ["Share", "=B2/B9"]].
        """
        worksheet = books.book.sheet(sheet)
        area = changes.write(books.book, worksheet, start, rows)
        formulas = [
            address(area.top + down, area.left + right)
            for down, row in enumerate(rows)
            for right, content in enumerate(row)
            if is_formula(content)
        ]
        return f"Wrote {sheet}!{area}.{_results(sheet, formulas)}"

    def copy_range(sheet: str, range: str, to: str, to_sheet: str = "") -> str:
        """Copy cells; relative references in formulas move along, as when a formula is filled down.

        Args:
            sheet: Sheet to copy from.
            range: Cells to copy, such as C2 or C2:D2.
            to: First cell to copy to, or a larger range to fill, such as C3:C40.
            to_sheet: Sheet to copy to; empty for the same.
        """
        source = books.book.sheet(sheet)
        target = books.book.sheet(to_sheet or sheet)
        area = changes.copy(books.book, source, range, target, to)
        formulas = [
            address(*place) for place in area.places() if target.cell(*place).data_type == "f"
        ]
        return f"Copied to {target.title}!{area}.{_results(target.title, formulas)}"

    def clear_range(sheet: str, range: str) -> str:
        """Empty cells; their formats stay.

        Args:
            sheet: Name of the sheet.
            range: Cells, such as B2:D10.
        """
        area = Area.parsed(range)
        if area.size > changes.MOST_WRITTEN:
            raise UsageError(f"One call empties at most {changes.MOST_WRITTEN:,} cells.")
        width = area.right - area.left + 1
        empty: list[list[Content]] = [[None] * width for _ in _numbers(area.top, area.bottom)]
        changes.write(books.book, books.book.sheet(sheet), str(area), empty)
        return f"Emptied {sheet}!{area}."

    def find(text: str, sheet: str = "") -> str:
        """Find the cells whose value or formula contains a text, without regard to case.

        Args:
            text: Text to look for.
            sheet: Sheet to look in; empty for all.
        """
        wanted, lines = text.lower(), []
        names = [sheet] if sheet else books.book.workbook.sheetnames
        for worksheet in map(books.book.sheet, names):
            area = Area.parsed(worksheet.calculate_dimension())
            rows = books.book.shown(worksheet, area)
            shown = (value for row in rows for value in row)
            for (row, column), value in zip(area.places(), shown, strict=True):
                cell = worksheet._cells.get((row, column))
                content = None if cell is None else cell.value
                if wanted in str(value).lower() or wanted in str(content).lower():
                    formula = f" {content}" if is_formula(content) else ""
                    lines.append(
                        f"{worksheet.title}!{address(row, column)}: {_json(value)}{formula}"
                    )
        more = f"\n{len(lines) - MOST_FOUND} more." if len(lines) > MOST_FOUND else ""
        return "\n".join(lines[:MOST_FOUND]) + more if lines else f"No cell contains {text!r}."

    def add_sheet(name: str) -> str:
        """Add an empty sheet at the end.

        Args:
            name: Name of the sheet.
        """
        changes.add_sheet(books.book, name)
        return f"Added {name!r}."

    def rename_sheet(name: str, new_name: str) -> str:
        """Rename a sheet; formulas, names and charts follow.

        Args:
            name: Name of the sheet.
            new_name: Its new name.
        """
        changes.rename_sheet(books.book, name, new_name)
        return f"Renamed {name!r} to {new_name!r}."

    def delete_sheet(name: str) -> str:
        """Delete a sheet with all that it holds.

        Args:
            name: Name of the sheet.
        """
        changes.delete_sheet(books.book, name)
        return f"Deleted {name!r}."

    def format_cells(
        sheet: str,
        range: str,
        number_format: str | None = None,
        bold: bool | None = None,
        fill: str | None = None,
        locked: bool | None = None,
        column_width: float | None = None,
    ) -> str:
        """Format cells; what is not given stays as it is.

        Args:
            sheet: Name of the sheet.
            range: Cells, such as B2:D10.
            number_format: Format such as 0.00, #,##0, 0.0% or yyyy-mm-dd.
            bold: Bold text.
            fill: Colour of the background, such as FFFF00.
            locked: False for cells that can be changed on a protected sheet.
            column_width: Width of the columns, in characters.
        """
        worksheet, area = books.book.sheet(sheet), Area.parsed(range)
        if area.size > changes.MOST_WRITTEN:
            raise UsageError(f"One call formats at most {changes.MOST_WRITTEN:,} cells.")
        changes.check_room(books.book, worksheet, area)
        if locked is not None and worksheet.protection.sheet:
            raise UsageError(f"{sheet!r} is protected; cells are locked and unlocked without it.")
        for place in area.places():
            cell = worksheet.cell(*place)
            if number_format is not None:
                cell.number_format = number_format
            if bold is not None:
                restyled(cell, "font", bold=bold)
            if fill is not None:
                cell.fill = _filled(fill)
            if locked is not None:
                restyled(cell, "protection", locked=locked)
        if column_width is not None:
            for column in _numbers(area.left, area.right):
                worksheet.column_dimensions[get_column_letter(column)].width = column_width
        books.book.changed()
        return f"Formatted {sheet}!{area}."

    def protect_sheet(sheet: str, on: bool = True) -> str:
        """Protect a sheet, so that only its unlocked cells can be changed, or end its protection.

        Args:
            sheet: Name of the sheet.
            on: False to end the protection.
        """
        books.book.sheet(sheet).protection.sheet = on
        return f"{sheet!r} is {'protected' if on else 'not protected'} now."

    def define_name(name: str, sheet: str, range: str) -> str:
        """Define a name for a range, for use in formulas, or redefine it.

        Args:
            name: Name, such as TaxRate.
            sheet: Sheet of the range.
            range: Cells, such as B2 or B2:B20.
        """
        changes.define_name(books.book, name, books.book.sheet(sheet), range)
        return f"{name} is {books.book.workbook.defined_names[name].attr_text}."

    def set_chart_series(
        sheet: str, chart: int, series: int, values: str, categories: str = "", data_sheet: str = ""
    ) -> str:
        """Give a series of a chart other ranges; `list_sheets` shows those that it has.

        Args:
            sheet: Sheet that the chart is on.
            chart: Number of the chart on its sheet, from 1.
            series: Number of the series, from 1.
            values: Range of the values, such as B2:B13.
            categories: Range of the categories; empty to leave them as they are.
            data_sheet: Sheet of the ranges; empty for the sheet of the chart.
        """
        source = books.book.sheet(data_sheet or sheet)
        worksheet = books.book.sheet(sheet)
        changes.set_series(worksheet, chart, series, values, categories or None, source)
        return f"Series {series} of chart {chart}: {chart_references(worksheet._charts[chart - 1])[series - 1]}."

    def _results(sheet: str, cells: list[str]) -> str:
        """Return the values of formulas, those with errors first."""
        if not cells:
            return ""
        shown = {
            cell: books.book.shown(books.book.sheet(sheet), Area.parsed(cell))[0][0]
            for cell in cells
        }
        wrong = {cell: value for cell, value in shown.items() if str(value).startswith("#")}
        some = dict(list({**wrong, **shown}.items())[:40])
        errors = f" {len(wrong)} are errors." if wrong else ""
        return f" Values of formulas: {_json(some)}{errors}"

    functions: list[Callable[..., Any]] = [
        list_sheets,
        read_range,
        write_cells,
        copy_range,
        clear_range,
        find,
        add_sheet,
        rename_sheet,
        delete_sheet,
        format_cells,
        protect_sheet,
        define_name,
        set_chart_series,
    ]
    return [_one_at_a_time(books, function) for function in functions]


def _one_at_a_time(books: BookPart, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        with books.book.lock:
            return function(*arguments, **named)

    return called


def _filled(colour: str) -> PatternFill:
    try:
        return PatternFill("solid", fgColor=colour.lstrip("#"))
    except ValueError:
        raise UsageError(f"{colour!r} is no colour; write it as FFFF00.") from None


def _numbers(first: int, last: int) -> range:
    return range(first, last + 1)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
