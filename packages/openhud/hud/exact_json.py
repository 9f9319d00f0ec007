"""JSON of foreign data: reads and writes integers of any size exactly.

`orjson` reads integers beyond 64 bits as floats and refuses to write them. It serves all documents without such a number;
the others take a second, exact pass. No other module of the package imports `orjson`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from collections.abc import Callable
from typing import Any

import orjson
from orjson import (
    OPT_APPEND_NEWLINE,
    OPT_INDENT_2,
    OPT_NON_STR_KEYS,
    OPT_PASSTHROUGH_DATACLASS,
    OPT_SERIALIZE_NUMPY,
    OPT_SORT_KEYS,
    JSONDecodeError,
    JSONEncodeError,
)
from pydantic_core import from_json

__all__ = [
    "OPT_APPEND_NEWLINE",
    "OPT_INDENT_2",
    "OPT_NON_STR_KEYS",
    "OPT_PASSTHROUGH_DATACLASS",
    "OPT_SERIALIZE_NUMPY",
    "OPT_SORT_KEYS",
    "JSONDecodeError",
    "JSONEncodeError",
    "NestedTooDeepError",
    "dumps",
    "has_many_containers",
    "has_unreadable_integer",
    "is_nested_deep",
    "loads",
]

_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
"""Range of the integers that `orjson` writes."""
_LONG = b"0" * 19
"""Digits of the shortest integer that `orjson` reads as a float."""
_BEFORE_INTEGERS = {b"", *(bytes([code]) for code in b" \t\r\n[,:-")}
"""What is before an integer; other digits belong to a fraction, an exponent, or a text such as an id of zeros."""
MOST_DIGITS = 4_300
"""Digits of the longest integer that Python converts from text by default."""
_UNREADABLE = b"0" * (MOST_DIGITS + 1)
MOST_LEVELS = 230
"""Nesting of the deepest document that a store takes: answers wrap it, and have at most 254 levels."""
MOST_CONTAINERS = 2_000_000
"""Maximum number of lists and objects of a document, those in its texts included: parsed, each takes up to 80 times its bytes."""
_STRINGS = re.compile(rb'"[^"]*+"')
_LISTS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))
_TOO_DEEP = "Recursion limit reached"
"""Message of `orjson` for a value that is nested too deep."""
_DIGITS = bytes(ord("0") if chr(code).isdigit() and code < 128 else ord(" ") for code in range(256))


class NestedTooDeepError(JSONEncodeError):
    """A value is nested deeper than `orjson` writes, 254 levels."""


def loads(data: bytes | bytearray | memoryview | str) -> Any:
    """Return the value of a JSON document. Raises `JSONDecodeError`, also for NaN, Infinity and lone surrogates."""
    try:
        value = orjson.loads(data)
    except JSONDecodeError as error:
        if not _has_long_number(data):
            raise
        return _beyond_floats(data, error)
    return _exactly(data) if _has_long_number(data) else value


def _has_long_number(data: bytes | bytearray | memoryview | str) -> bool:
    """Return whether a text has as many digits in a row as an integer beyond 64 bits, and none of a fraction or an id.

    A regular expression takes ten times as long.
    """
    encoded = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
    digits = encoded.translate(_DIGITS)
    start = digits.find(_LONG)
    while start >= 0:
        end = digits.find(b" ", start)
        end = len(digits) if end < 0 else end
        before = encoded[start - 1 : start]
        # A positive integer of 19 digits is within 64 bits.
        if before in _BEFORE_INTEGERS and (before == b"-" or end - start > len(_LONG)):
            return True
        start = digits.find(_LONG, end)
    return False


def has_unreadable_integer(data: bytes) -> bool:
    """Return True if a document may hold an integer that `loads` refuses; also for a text of so many digits."""
    return len(data) > MOST_DIGITS and _UNREADABLE in data.translate(_DIGITS)


def _exactly(data: bytes | bytearray | memoryview | str) -> Any:
    """Return the value of a valid document."""
    document = data if isinstance(data, str) else bytes(data)
    try:
        return from_json(document)
    except ValueError:  # It is nested deeper than 200 levels.
        return _nested(document)


def _beyond_floats(data: bytes | bytearray | memoryview | str, error: JSONDecodeError) -> Any:
    """Return the value of a document with an integer that exceeds the range of floats; raise `error` for any other."""
    document = data if isinstance(data, str) else bytes(data)
    try:
        from_json(document, allow_inf_nan=False)
        return json.loads(document, parse_float=_finite)
    except ValueError:
        raise error from None


def _nested(document: str | bytes) -> Any:
    """Return the value of a valid document. Raises `JSONDecodeError` for one that is nested too deep for this call's stack."""
    try:
        return json.loads(document)
    except RecursionError:
        raise JSONDecodeError("nested too deep", "", 0) from None


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(digits)
    return number


def has_many_containers(document: bytes) -> bool:
    """Return True for a document that would take much more memory than its bytes."""
    return document.count(b"[") + document.count(b"{") > MOST_CONTAINERS


def is_nested_deep(document: bytes) -> bool:
    """Return True for a document of more than `MOST_LEVELS` levels. In linear time; brackets in its texts do not count."""
    if document.count(b"[") + document.count(b"{") <= MOST_LEVELS:
        return False
    level = 0
    unescaped = document.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Hot path: most texts hold no bracket, so that few are left for the expression.
    marks = unescaped.translate(_LISTS, _OTHERS).replace(b'""', b"")
    brackets = _STRINGS.sub(b"", marks)
    while b"[]" in brackets:
        level += 1
        if level > MOST_LEVELS:
            return True
        brackets = brackets.replace(b"[]", b"")
    return len(brackets) > MOST_LEVELS


def dumps(value: Any, default: Callable[[Any], Any] | None = None, option: int = 0) -> bytes:
    """Return `value` as JSON, as `orjson.dumps` does. Raises `JSONEncodeError`, and its kind `NestedTooDeepError`."""
    try:
        return orjson.dumps(value, default, option)
    except JSONEncodeError as error:
        if str(error) == _TOO_DEEP:
            raise NestedTooDeepError("nested too deep") from None
        try:
            exact = _Exact(default, bool(option & OPT_NON_STR_KEYS))
            rewritten = exact.value(value)
            if not exact.has_large and default is None:
                raise
            return orjson.dumps(rewritten, exact.default if default else None, option)
        except RecursionError:
            raise NestedTooDeepError("nested too deep") from None


class _Exact:
    """A copy of a value with its integers beyond 64 bits as JSON fragments."""

    def __init__(self, default: Callable[[Any], Any] | None, any_keys: bool) -> None:
        self._default = default
        self._any_keys = any_keys
        self.has_large = False

    def value(self, value: Any) -> Any:
        """Return the copy."""
        if isinstance(value, enum.Enum):
            value = value.value
        if isinstance(value, int) and not _SMALLEST <= value <= _LARGEST:
            self.has_large = True
            return orjson.Fragment(_digits(value))
        if isinstance(value, dict):
            return {self._key(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {
                field.name: self.value(getattr(value, field.name))
                for field in dataclasses.fields(value)
                if not field.name.startswith("_")
            }
        return value

    def default(self, value: Any) -> Any:
        """Return the copy of a value's substitute."""
        assert self._default is not None
        return self.value(self._default(value))

    def _key(self, key: Any) -> Any:
        outside = isinstance(key, int) and not _SMALLEST <= key <= _LARGEST
        return _digits(key) if outside and self._any_keys else key


def _digits(value: int) -> str:
    try:
        return str(int(value))
    except ValueError:  # `sys.set_int_max_str_digits`
        raise JSONEncodeError("an integer has too many digits") from None
