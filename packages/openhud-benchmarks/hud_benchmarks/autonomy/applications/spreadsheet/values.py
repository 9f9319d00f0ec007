"""Values of a workbook's cells, formulas computed, as Gnumeric's converter leaves them in an xlsx file."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from hud_benchmarks.autonomy.applications.spreadsheet.workbook import Cell, is_formula

_SPACE = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_DIGITS = 6
"""Digits of a number after the point that count."""
_MOST_BYTES = 1 << 25
"""Size that a part of a file may have without compression."""
State = dict[str, Any]
"""Contents by place, such as `Prices!B2`; `sheets` has the names of the sheets, in order."""
UnreadableError = (
    zipfile.BadZipFile,
    zlib.error,
    ElementTree.ParseError,
    LookupError,
    ValueError,
    ArithmeticError,
    EOFError,
    OSError,
    RecursionError,
    MemoryError,
)
"""Errors of a file that is no workbook."""


def state(files: Sequence[bytes], changes: Mapping[str, Cell]) -> State:
    """Return the state of a workbook from files of it, each with other inputs.

    `asked` holds what cells are to become, by place. The contents of these are their values in each file, and marked
    where they are constants in place of formulas. Of other formulas, the contents are the formulas themselves, as
    their values follow what is changed elsewhere. Raises one of `UnreadableError` for a file that is no workbook.
    """
    read = [_contents(content, changes) for content in files]
    places = {place for contents in read for place in contents}
    return {place: tuple(contents.get(place) for contents in read) for place in places}


def _contents(content: bytes, changes: Mapping[str, Cell]) -> State:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        names = [sheet.attrib["name"] for sheet in _tree(file, "workbook").iter(f"{_SPACE}sheet")]
        shared = [] if "xl/sharedStrings.xml" not in file.namelist() else [
            _text(text_element) for text_element in _tree(file, "sharedStrings").iter(f"{_SPACE}si")
        ]  # fmt: skip
        cell_values: State = {"sheets": tuple(names)}
        for number, name in enumerate(names, 1):
            for cell in _tree(file, f"worksheets/sheet{number}").iter(f"{_SPACE}c"):
                place = f"{name}!{cell.attrib['r']}"
                value: object = _value(cell, shared)
                formula = cell.findtext(f"{_SPACE}f")
                if formula is not None and place not in changes:
                    value = f"={formula}"
                elif formula is None and is_formula(changes.get(place)):
                    value = ("constant", value)
                if value != "":
                    cell_values[place] = value
        return cell_values


def _tree(file: zipfile.ZipFile, name: str) -> ElementTree.Element:
    """Return a part of the file. Raises `ValueError` for one of great size: formulas make texts of any length."""
    with file.open(f"xl/{name}.xml") as part:
        content = part.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{name} has more than {_MOST_BYTES >> 20} MiB")
    return ElementTree.fromstring(content)


def _value(cell: ElementTree.Element, shared: list[str]) -> str | float:
    """Return a number or a text; empty where there is nothing."""
    kind = cell.get("t", "n")
    if kind == "inlineStr":
        return _text(cell)
    written = cell.findtext(f"{_SPACE}v", "")
    if kind == "s":
        return shared[int(written)]
    return round(float(written), _DIGITS) if kind == "n" and written else written


def _text(element: ElementTree.Element) -> str:
    return "".join(part.text or "" for part in element.iter(f"{_SPACE}t")).strip()
