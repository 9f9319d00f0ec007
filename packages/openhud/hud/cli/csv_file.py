"""CSV files for spreadsheets. Text that a spreadsheet would execute as a formula is written as text."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_SPACE = r"[\s\x00-\x1f\u200b-\u200f\u2060\ufeff]*"
"""White space and invisible characters, which spreadsheets may skip."""
_FORMULA = re.compile(rf"{_SPACE}[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
"""Start of a cell that spreadsheets execute, also in its full-width form."""
_INNER_FORMULA = re.compile(rf"(?<=[;|\t\r\n])(?={_SPACE}[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""Start of a formula after a mark that separates cells where the settings of a spreadsheet name it, not the comma."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def write_csv(target: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table as UTF-8."""
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for row in (header, *rows):
            writer.writerow([cell(value) for value in row])


def cell(value: object) -> object:
    """Return a value as it is written: text gets an apostrophe before each formula; numbers stay numbers."""
    if value is None or isinstance(value, int | float):
        return value
    text = _INNER_FORMULA.sub("'", str(value))
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
