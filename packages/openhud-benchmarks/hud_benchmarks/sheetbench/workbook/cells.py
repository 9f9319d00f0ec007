"""Addresses and contents of cells, as tools give and take them."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openpyxl.utils import get_column_letter
from openpyxl.utils.cell import column_index_from_string
from openpyxl.utils.datetime import from_excel, to_excel

from hud.errors import UsageError

ROWS, COLUMNS = 1_048_576, 16_384
LONGEST_TEXT = 32_767
LARGEST_NUMBER = 9.99e307
_AREA = re.compile(r"\$?([A-Za-z]{1,3})\$?([1-9]\d{0,6})(?::\$?([A-Za-z]{1,3})\$?([1-9]\d{0,6}))?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?)?")
_TIME = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")

Content = str | int | float | bool | None
"""A cell's content as JSON has it; a formula begins with `=`."""


@dataclass(frozen=True)
class Area:
    """A rectangle of cells; rows and columns count from 1, the last ones are in it."""

    top: int
    left: int
    bottom: int
    right: int

    @classmethod
    def parsed(cls, text: str) -> Area:
        """Return the area of `B2` or `B2:D10`; raises `UsageError`."""
        match = _AREA.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"{text!r} is no cell and no range; write B2 or B2:D10.")
        columns = [column_index_from_string(match[place] or match[1]) for place in (1, 3)]
        rows = [int(match[place] or match[2]) for place in (2, 4)]
        if max(columns) > COLUMNS or max(rows) > ROWS:
            raise UsageError(f"{text!r} is beyond the last cell of a sheet, XFD{ROWS}.")
        return cls(min(rows), min(columns), max(rows), max(columns))

    @property
    def size(self) -> int:
        """Number of cells."""
        return (self.bottom - self.top + 1) * (self.right - self.left + 1)

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield row and column of each cell, row by row."""
        for row in range(self.top, self.bottom + 1):
            for column in range(self.left, self.right + 1):
                yield row, column

    def __str__(self) -> str:
        first, last = address(self.top, self.left), address(self.bottom, self.right)
        return first if first == last else f"{first}:{last}"


def address(row: int, column: int) -> str:
    """Return the address of a cell, such as `B2`."""
    return f"{get_column_letter(column)}{row}"


def is_formula(content: object) -> bool:
    """Return whether a content is a formula."""
    return isinstance(content, str) and len(content) > 1 and content.startswith("=")


def written(content: Content) -> Any:
    """Return a content given to a tool as the workbook keeps it.

    A text in the form of a date or a time is one; an apostrophe before a text keeps it a text. Raises `UsageError`.
    """
    if isinstance(content, int | float) and not -LARGEST_NUMBER <= content <= LARGEST_NUMBER:
        raise UsageError(f"A cell holds numbers up to {LARGEST_NUMBER:g}.")
    if not isinstance(content, str):
        return content
    if len(content) > LONGEST_TEXT:
        raise UsageError(f"A cell holds at most {LONGEST_TEXT:,} characters.")
    if content.startswith("'"):
        return content[1:] or None
    try:
        if _DATE.fullmatch(content):
            return dt.datetime.fromisoformat(content)
        if _TIME.fullmatch(content):
            hours, _, rest = content.partition(":")
            return dt.time.fromisoformat(f"{int(hours):02d}:{rest}")
    except ValueError:
        return content
    return content or None


def shown(content: Any, *, date: bool = False) -> Content:
    """Return a content as tools show it, so that `written` gives it back; `date`: a number is a date's serial number."""
    if isinstance(content, dt.datetime | dt.date | dt.time | dt.timedelta):
        return _iso(content)
    if isinstance(content, bool) or content is None:
        return content
    if isinstance(content, int | float):
        if date and 0 <= content < 2_900_000:
            return _iso(from_excel(round(content * 86_400) / 86_400))
        # Sums of decimal fractions carry binary noise.
        return _whole(float(f"{content:.14g}"))
    text = str(content)
    quoted = text.startswith(("'", "=")) or _DATE.fullmatch(text) or _TIME.fullmatch(text)
    return f"'{text}" if quoted else text


def number(content: Any) -> float | str:
    """Return a content as a recalculation gives it: numbers (dates too), texts, '' for an empty cell."""
    if content is None:
        return ""
    if isinstance(content, dt.datetime | dt.date | dt.time | dt.timedelta):
        return float(to_excel(content))
    return float(content) if isinstance(content, int | float) else str(content)


def _whole(value: float) -> int | float:
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _iso(value: Any) -> str:
    if isinstance(value, dt.time | dt.timedelta):
        return str(value)
    if isinstance(value, dt.datetime):
        midnight = value.time() == dt.time()
        return value.date().isoformat() if midnight else value.isoformat(" ", "seconds")
    return str(value.isoformat())
