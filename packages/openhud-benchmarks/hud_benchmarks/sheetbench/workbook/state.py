"""State of a workbook by places, to compare one workbook with another.

A place is a tuple: sheet, then a cell's address, then what of it. Looks (fonts, fills, widths) are no part of it.
"""

from __future__ import annotations

from typing import Any

from openpyxl import Workbook
from openpyxl.worksheet.worksheet import Worksheet

from hud_benchmarks.sheetbench.workbook.cells import number

Place = tuple[Any, ...]
NAME = "defined name"
PROTECTED, LOCKED, NUMBER_FORMAT = "protected", "locked", "number format"


def state(workbook: Workbook) -> dict[Place, object]:
    """Return what a workbook holds, by place."""
    contents: dict[Place, object] = {
        (NAME, name): defined.attr_text for name, defined in workbook.defined_names.items()
    }
    for sheet in workbook.worksheets:
        contents |= _sheet(sheet)
    return contents


def chart_references(chart: Any) -> list[tuple[str, str]]:
    """Return categories and values of each series of a chart, as ranges such as `Data!B2:B9`."""
    return [(_plain(series.cat), _plain(series.val)) for series in chart.series]


def _plain(source: Any) -> str:
    """Return the range of a series' data; charts keep texts and numbers apart."""
    references = [getattr(source, kind, None) for kind in ("strRef", "numRef")]
    formula = next((reference.f for reference in references if reference is not None), "")
    return str(formula).replace("$", "").replace("'", "")


def _sheet(sheet: Worksheet) -> dict[Place, object]:
    name = sheet.title
    contents: dict[Place, object] = {
        (name, "state"): sheet.sheet_state,
        (name, PROTECTED): bool(sheet.protection.sheet),
        (name, "merged"): sorted(str(area) for area in sheet.merged_cells.ranges),
        (name, "validations"): sorted(
            (str(validation.sqref), str(validation.type), str(validation.formula1))
            for validation in sheet.data_validations.dataValidation
        ),
        (name, "conditional formats"): sorted(
            str(formatting.sqref) for formatting in sheet.conditional_formatting
        ),
    }
    for place, chart in enumerate(sheet._charts):
        contents[name, "chart", place + 1] = chart_references(chart)
    for cell in sheet._cells.values():
        if cell.value is not None:
            formula = cell.data_type == "f"
            content = str(cell.value) if formula else number(cell.value)
            if not formula and isinstance(content, str) and content.startswith("="):
                content = f"'{content}"
            contents[name, cell.coordinate] = content
            if formula or isinstance(content, float):
                contents[name, cell.coordinate, NUMBER_FORMAT] = cell.number_format
        if not cell.protection.locked:
            contents[name, cell.coordinate, LOCKED] = False
    return contents
