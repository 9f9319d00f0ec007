"""JSON of foreign data: reads and writes integers of any size exactly.

`orjson` reads integers beyond 64 bits as floats and refuses to write them. It serves all documents without such a number;
the others take a second, exact pass. No other module of the package imports `orjson`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
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
    "dumps",
    "has_unreadable_integer",
    "loads",
]

_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
"""Range of the integers that `orjson` writes."""
_LONG = b"0" * 19
"""Digits of the shortest integer that `orjson` reads as a float."""
MOST_DIGITS = 4_300
"""Digits of the longest integer that Python converts from text by default."""
_UNREADABLE = b"0" * (MOST_DIGITS + 1)
_DIGITS = bytes(ord("0") if chr(code).isdigit() and code < 128 else ord(" ") for code in range(256))


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
    """True for text with as many digits in a row as an integer beyond 64 bits has, except fractions.

    A regular expression takes ten times as long.
    """
    encoded = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
    digits = encoded.translate(_DIGITS)
    start = digits.find(_LONG)
    while start >= 0:
        if encoded[start - 1 : start] != b".":
            return True
        end = digits.find(b" ", start)
        start = digits.find(_LONG, end) if end >= 0 else -1
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
        return json.loads(document)


def _beyond_floats(data: bytes | bytearray | memoryview | str, error: JSONDecodeError) -> Any:
    """Return the value of a document with an integer that exceeds the range of floats; raise `error` for any other."""
    document = data if isinstance(data, str) else bytes(data)
    try:
        from_json(document, allow_inf_nan=False)
        return json.loads(document, parse_float=_finite)
    except ValueError:
        raise error from None


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(digits)
    return number


def dumps(value: Any, default: Callable[[Any], Any] | None = None, option: int = 0) -> bytes:
    """Return `value` as JSON, as `orjson.dumps` does. Raises `JSONEncodeError`."""
    try:
        return orjson.dumps(value, default, option)
    except JSONEncodeError:
        try:
            exact = _Exact(default, bool(option & OPT_NON_STR_KEYS))
            rewritten = exact.value(value)
            if not exact.has_large and default is None:
                raise
            return orjson.dumps(rewritten, exact.default if default else None, option)
        except RecursionError:
            raise JSONEncodeError("nested too deep") from None


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
