"""`Exercise`: a workbook, a request, and what the request comes to, in parts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openpyxl import Workbook

from hud_benchmarks.sheetbench.workbook.cells import Area, address, number
from hud_benchmarks.sheetbench.workbook.state import Place

Value = str | int | float | bool | dt.date | None
Cell = tuple[str, str]
"""Sheet and address."""
TOLERANCE = 0.0051
"""Largest difference between numbers that are equal: half a cent, rounded or not."""
SCRATCH = "SCRATCH"
"""Sheet that agents may make and fill with anything."""


@dataclass(frozen=True)
class Wanted:
    """Content that a cell is to have."""

    value: Value
    formula: str | None = None
    """Formula of the reference solution; None where the value alone was asked for."""
    tolerance: float = TOLERANCE

    def met(self, value: float | str) -> bool:
        """Return whether the value of a cell is as wanted."""
        wanted = number(self.value)
        if isinstance(wanted, str) or isinstance(value, str):
            return wanted == value
        return abs(wanted - value) <= self.tolerance + 1e-9 * abs(wanted)


@dataclass(frozen=True)
class WhatIf:
    """Other contents of input cells, and the values of formulas that follow from them."""

    changes: Mapping[Cell, float | str]
    expected: Mapping[Cell, Value]
    """Values of the formulas that differ from those of the workbook as it is."""


@dataclass
class Exercise:
    """One task for one seed."""

    workbook: Workbook
    request: str = ""
    parts: dict[str, dict[Cell, Wanted]] = field(default_factory=dict)
    """Cells by the name of their part, which counts when all of its cells are as wanted."""
    settings: dict[str, dict[Place, object]] = field(default_factory=dict)
    """Further places of a workbook's state by the name of their part, with the content asked for."""
    what_ifs: list[WhatIf] = field(default_factory=list)
    steps: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Tool calls of the reference solution besides those that write the wanted cells."""

    def want(
        self,
        part: str,
        sheet: str,
        cell: str,
        value: Value,
        formula: str | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:
        """Ask for the content of a cell."""
        self.parts.setdefault(part, {})[sheet, cell] = Wanted(value, formula, tolerance)

    def want_rows(
        self,
        part: str,
        sheet: str,
        first: str,
        rows: Sequence[Sequence[Value]],
        formulas: Sequence[Sequence[str | None]] | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:
        """Ask for rows of contents from a cell on."""
        start = Area.parsed(first)
        for down, row in enumerate(rows):
            for right, value in enumerate(row):
                cell = address(start.top + down, start.left + right)
                formula = None if formulas is None else formulas[down][right]
                self.want(part, sheet, cell, value, formula, tolerance)

    def want_setting(self, part: str, place: Place, content: object) -> None:
        """Ask for something else than a cell's content."""
        self.settings.setdefault(part, {})[place] = content

    def what_if(self, changes: Mapping[Cell, float | str], expected: Mapping[Cell, Value]) -> None:
        """Add other inputs with the values that follow."""
        self.what_ifs.append(WhatIf(dict(changes), dict(expected)))

    def names(self) -> list[str]:
        """Return the names of the parts, in order."""
        return list(dict.fromkeys([*self.parts, *self.settings]))

    def wanted(self) -> Iterator[tuple[Cell, Wanted]]:
        """Yield every cell that is asked for."""
        for cells in self.parts.values():
            yield from cells.items()
