"""Workbooks: cells by sheet, row and column, and the file of Gnumeric that has them."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from xml.etree import ElementTree
from xml.parsers import expat
from xml.sax.saxutils import escape

Cell = str | int | float | None
"""Content of a cell; a text that begins with `=` is a formula, None an empty cell."""
Sheet = list[list[Cell]]
"""Rows from the first on; all of one length."""
Workbook = dict[str, Sheet]
"""Sheets by name, in order."""

_COLUMNS, _ROWS = 256, 65536
_POINTS = 6.0
"""Width of a character."""
_MOST_BYTES = 1 << 24
"""Size that a file may have without compression."""
_SPACE = "{http://www.gnumeric.org/v10.dtd}"
# Gnumeric reads some attributes by this prefix.
ElementTree.register_namespace("gnm", _SPACE.strip("{}"))
_TEXT, _NUMBER = 60, 40
"""Types of values in the file; a formula has none."""
_BOLD = (
    '<gnm:Styles><gnm:StyleRegion startCol="0" startRow="0" endCol="{last}" endRow="0"><gnm:Style>'
    '<gnm:Font Unit="10" Bold="1">Sans</gnm:Font></gnm:Style></gnm:StyleRegion></gnm:Styles>'
)


def address(row: int, column: int) -> str:
    """Return the name of a cell, such as B3 for row 2 and column 1; there are at most 26 columns."""
    return f"{chr(ord('A') + column)}{row + 1}"


def is_formula(content: Cell) -> bool:
    """Return whether a cell's content is a formula."""
    return isinstance(content, str) and content.startswith("=")


def copied(book: Workbook) -> Workbook:
    """Return a workbook of the same cells."""
    return {name: [list(row) for row in sheet] for name, sheet in book.items()}


def table(*rows: Sequence[Cell]) -> Sheet:
    """Return a sheet of rows, which are filled up with empty cells to one length."""
    width = max(map(len, rows))
    return [[*row, *[None] * (width - len(row))] for row in rows]


def cells(book: Workbook) -> Iterator[tuple[str, int, int, Cell]]:
    """Iterate over sheet, row, column and content of all cells that are not empty."""
    for name, sheet in book.items():
        for row, contents in enumerate(sheet):
            for column, content in enumerate(contents):
                if content is not None:
                    yield name, row, column, content


def file_of(book: Workbook) -> bytes:
    """Return the file of a workbook, in Gnumeric's own format; the first row of each sheet is bold."""
    names = "".join(
        f'<gnm:SheetName gnm:Cols="{_COLUMNS}" gnm:Rows="{_ROWS}">{escape(name)}</gnm:SheetName>'
        for name in book
    )
    sheets = "".join(_sheet(name, book[name]) for name in book)
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<gnm:Workbook xmlns:gnm="http://www.gnumeric.org/v10.dtd">'
        f"<gnm:SheetNameIndex>{names}</gnm:SheetNameIndex><gnm:Sheets>{sheets}</gnm:Sheets></gnm:Workbook>\n"
    )
    return text.encode()


def with_inputs(file: bytes, inputs: Mapping[str, float]) -> bytes:
    """Return a workbook's file with other numbers in some cells, by place, such as `Prices!B2`.

    Raises `ValueError`, `OSError` or `ElementTree.ParseError` for a file that is none.
    """
    if file.startswith(b"\x1f\x8b"):
        file = gzip.GzipFile(fileobj=io.BytesIO(file)).read(_MOST_BYTES)
    if len(file) > _MOST_BYTES:
        raise ValueError("the file is too large")
    _refuse_entities(file)
    tree = ElementTree.fromstring(file)
    for sheet in tree.iter(f"{_SPACE}Sheet"):
        name = sheet.findtext(f"{_SPACE}Name", "")
        for cell in sheet.iter(f"{_SPACE}Cell"):
            place = f"{name}!{address(int(cell.get('Row', 0)), int(cell.get('Col', 0)))}"
            if place in inputs and cell.get("ValueType") == str(_NUMBER):
                cell.text = str(inputs[place])
    changed: bytes = ElementTree.tostring(tree, encoding="utf-8", xml_declaration=True)
    return changed


def _refuse_entities(file: bytes) -> None:
    """Raise `ValueError` for a file with a document type: entities of its own may be a hundred times its size."""

    def refuse(*_: object) -> None:
        raise ValueError("the file has a document type")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(file, True)
    except expat.ExpatError as error:
        raise ValueError(f"the file is no XML: {error}") from error


def _sheet(name: str, sheet: Sheet) -> str:
    widths = [
        max((len(str(content)) for content in column if not is_formula(content)), default=0)
        for column in zip(*sheet, strict=True)
    ]
    columns = "".join(
        f'<gnm:ColInfo No="{number}" Unit="{max(10, width + 2) * _POINTS:g}"/>'
        for number, width in enumerate(widths)
    )
    cell_elements = "".join(
        _cell(row, column, content) for _, row, column, content in cells({name: sheet})
    )
    return (
        f"<gnm:Sheet><gnm:Name>{escape(name)}</gnm:Name>{_BOLD.format(last=len(widths) - 1)}"
        f"<gnm:Cols>{columns}</gnm:Cols><gnm:Cells>{cell_elements}</gnm:Cells></gnm:Sheet>"
    )


def _cell(row: int, column: int, content: Cell) -> str:
    kind = f' ValueType="{_TEXT if isinstance(content, str) else _NUMBER}"'
    if is_formula(content):
        kind = ""
    return f'<gnm:Cell Row="{row}" Col="{column}"{kind}>{escape(str(content))}</gnm:Cell>'
