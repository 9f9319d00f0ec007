"""Conversion of any value to one that JSON can represent: no cycles, bounded depth, no lone surrogates."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

_DEEPEST = 200
_EXACT = 2**53
"""Bound of the integers that a float holds exactly."""
_MOST_BITS = 14_000
"""Longest integer that is written as a number, in bits: Python converts at most 4,300 digits to and from text."""


def as_text(value: Any) -> Any:
    """Return a value without a JSON form as its text, or as a plain number."""
    item = getattr(value, "item", None)  # NumPy's scalars, and tensors of one element.
    if callable(item) and getattr(value, "ndim", 1) == 0:
        return item()
    return repr(value)


def jsonable(value: Any, depth: int = 0) -> Any:
    """Return `value` converted so that `exact_json` can serialize it."""
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {jsonable(str(key)): jsonable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item, depth + 1) for item in value]
    if isinstance(value, bool | float | None):
        return value
    if isinstance(value, int):
        return value if is_writable(value) else hex(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    isoformat = getattr(value, "isoformat", None)
    return isoformat() if callable(isoformat) else jsonable(as_text(value), depth + 1)


def copied(value: Any) -> Any:
    """Return a copy of plain data: of its lists and objects, at every depth."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def plain_value(value: Any) -> Any:
    """Return a value of JSON for comparisons: with 3 in place of 3.0, and text in its composed form (NFC)."""
    # Text first: most values are text, and a `Mapping` takes long to rule out.
    if isinstance(value, str):
        return value if value.isascii() else unicodedata.normalize("NFC", value)
    if isinstance(value, dict | Mapping):
        return {plain_value(name): plain_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(part) for part in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT
    return int(value) if is_whole else value


def is_writable(value: int) -> bool:
    """True for an integer that can be converted to decimal digits and back."""
    return value.bit_length() <= _MOST_BITS


def is_text(text: str) -> bool:
    """True for text that every database keeps as it is."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
