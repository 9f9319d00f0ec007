"""Formulas: those that are refused, and the names that files have for functions newer than the format."""

from __future__ import annotations

import re

from openpyxl.formula import Tokenizer
from openpyxl.formula.tokenizer import Token
from openpyxl.worksheet.worksheet import Worksheet

from hud.errors import UsageError

LONGEST_FORMULA = 8_192
"""Characters of a formula, as in Excel."""
REFUSED = ("WEBSERVICE", "FILTERXML", "DDE", "RTD", "CALL", "REGISTER.ID", "INFO", "STYLE", "MACRO")
"""Functions that reach out of the workbook."""
UNKNOWN = [
    "XLOOKUP",
    "XMATCH",
    "FILTER",
    "SORT",
    "SORTBY",
    "UNIQUE",
    "SEQUENCE",
    "LET",
    "LAMBDA",
    "MAP",
    "REDUCE",
    "VSTACK",
    "HSTACK",
    "TEXTSPLIT",
    "TEXTBEFORE",
    "TEXTAFTER",
    "TOCOL",
    "TOROW",
    "TAKE",
    "DROP",
    "CHOOSECOLS",
    "CHOOSEROWS",
    "GROUPBY",
    "PIVOTBY",
    "RANDARRAY",
]
"""Functions of recent Excel that the LibreOffice of this benchmark may not have."""
_LATER = [
    "IFS",
    "SWITCH",
    "MAXIFS",
    "MINIFS",
    "CONCAT",
    "TEXTJOIN",
    "IFNA",
    "XOR",
    "DAYS",
    "NUMBERVALUE",
    "ISOWEEKNUM",
    "UNICODE",
    "UNICHAR",
    "RRI",
    "PDURATION",
    "ISFORMULA",
    "FORMULATEXT",
    "SHEET",
    "SHEETS",
    "STDEV.S",
    "STDEV.P",
    "VAR.S",
    "VAR.P",
    "PERCENTILE.INC",
    "PERCENTILE.EXC",
    "QUARTILE.INC",
    "QUARTILE.EXC",
    "RANK.EQ",
    "RANK.AVG",
    "MODE.SNGL",
    "CEILING.MATH",
    "FLOOR.MATH",
    "COVARIANCE.P",
    "COVARIANCE.S",
    "FORECAST.LINEAR",
]
_PREFIX = "_xlfn."
_NAMED = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, _LATER))})\(", re.IGNORECASE)


def check(formula: str) -> None:
    """Raise `UsageError` for a formula that is too long, cannot be read, or reaches out of its workbook."""
    if len(formula) > LONGEST_FORMULA:
        raise UsageError(f"A formula has at most {LONGEST_FORMULA:,} characters.")
    try:
        tokens = Tokenizer(formula).items
    except Exception as error:
        raise UsageError(f"{formula[:80]!r} is no formula: {error}.") from None
    opened = sum(
        1 if token.subtype == Token.OPEN else -1
        for token in tokens
        if token.subtype in (Token.OPEN, Token.CLOSE)
    )
    if opened:
        raise UsageError(f"{formula[:80]!r} is no formula: its parentheses do not match.")
    for token in tokens:
        name = token.value.upper().rstrip("(").removeprefix(_PREFIX.upper())
        if token.type == Token.FUNC and token.subtype == Token.OPEN:
            if name in REFUSED:
                raise UsageError(f"{name} reaches out of the workbook, and is refused.")
            if name in UNKNOWN:
                raise UsageError(
                    f"There is no {name} here; use INDEX, MATCH, SUMIFS, SUMPRODUCT and the like."
                )
        outside = any(mark in token.value for mark in ("[", "|", "#$", "://", "file:"))
        if token.type == Token.OPERAND and token.subtype == Token.RANGE and outside:
            raise UsageError(f"{token.value[:80]!r} is no range of this workbook.")


def for_file(formula: str) -> str:
    """Return a formula with the names that functions newer than the format have in a file."""
    return _outside_texts(
        formula, lambda part: _NAMED.sub(lambda match: f"{_PREFIX}{match[1].upper()}(", part)
    )


def moved_to(formula: str, old: str, new: str) -> str:
    """Return a formula in which the sheet `old` is called `new`."""
    wanted = quoted(new)
    names = "|".join(re.escape(form) for form in (f"'{old.replace(chr(39), chr(39) * 2)}'!", f"{old}!"))  # fmt: skip
    return _outside_texts(
        formula,
        lambda part: re.sub(rf"(?<![\w.'])(?:{names})", lambda _: f"{wanted}!", part),
    )


def quoted(sheet: str) -> str:
    """Return a sheet's name as formulas have it."""
    plain = re.fullmatch(r"[A-Za-z_]\w*", sheet) and not re.fullmatch(r"[A-Za-z]{1,3}\d+", sheet)
    return sheet if plain else "'" + sheet.replace("'", "''") + "'"


def formulas_in(sheet: Worksheet) -> list[tuple[str, str]]:
    """Return the formulas of a sheet by address."""
    return [
        (cell.coordinate, cell.value)
        for cell in sheet._cells.values()
        if isinstance(cell.value, str) and cell.data_type == "f"
    ]


def _outside_texts(formula: str, change: object) -> str:
    """Change the parts of a formula that are no texts in double quotes."""
    assert callable(change)
    parts = re.split(r'("(?:[^"]|"")*")', formula)
    return "".join(part if place % 2 else change(part) for place, part in enumerate(parts))
