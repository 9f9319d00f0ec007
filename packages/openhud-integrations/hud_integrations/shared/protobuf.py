"""Protocol buffers' wire format: fields of a message as numbers and bytes, in both directions.

The messages of Tinker's service and of OTLP are few, so they need no generated code.
Encoding: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from hud.errors import UsageError

Value = int | bytes
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
MOST_FIELDS = 1_000_000
"""Fields of a message: each takes a microsecond, whatever it holds."""


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield every field of a message with its number: integers, or bytes (also of fixed-size numbers).

    Raises `UsageError` for data that are no message.
    """
    at = count = 0
    while at < len(data):
        count += 1
        if count > MOST_FIELDS:
            raise UsageError(f"A message of this request has more than {MOST_FIELDS:,} fields.")
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise _damaged()
        if at + size > len(data):
            raise _damaged()
        yield key >> 3, data[at : at + size]
        at += size


def integers(value: Value) -> list[int]:
    """Return a repeated integer field, packed or not."""
    if isinstance(value, int):
        return [signed(value)]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(signed(number))
    return numbers


def signed(value: int) -> int:
    """Return a varint as int64."""
    return value - (1 << 64) if value >= 1 << 63 else value


def as_bytes(value: Value) -> bytes:
    """Return a field of bytes; raises `UsageError` for a number."""
    if isinstance(value, int):
        raise _damaged()
    return value


def as_text(value: Value) -> str:
    """Return a field of text."""
    try:
        return as_bytes(value).decode()
    except UnicodeDecodeError:
        raise _damaged() from None


def as_double(value: Value) -> float:
    """Return a field of type double."""
    data = as_bytes(value)
    if len(data) != 8:
        raise _damaged()
    number: float = struct.unpack("<d", data)[0]
    return number


def integer(number: int, value: int) -> bytes:
    """Encode an integer field."""
    return _key(number, _VARINT) + _encoded(value & ((1 << 64) - 1))


def double(number: int, value: float) -> bytes:
    """Encode a field of type double."""
    return _key(number, _FIXED64) + struct.pack("<d", value)


def data(number: int, value: bytes | str) -> bytes:
    """Encode a field of bytes, text, or a message."""
    content = value.encode() if isinstance(value, str) else value
    return _key(number, _BYTES) + _encoded(len(content)) + content


def _key(number: int, kind: int) -> bytes:
    return _encoded(number << 3 | kind)


def _encoded(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        if at >= len(data) or shift > 63:
            raise _damaged()
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
        shift += 7


def _damaged() -> UsageError:
    return UsageError("The body of this request is no valid protocol buffer.")
