"""Encodings of a chunk of a file of weights.

A step of training changes few bytes of 16-bit weights: their exclusive or with the earlier version is mostly zeros, which zlib at
its fastest level compresses to about twice the number of changed bytes.
"""

from __future__ import annotations

import zlib
from typing import Literal

import numpy as np

from hud.errors import UsageError

CHUNK_BYTES = 4 << 20
"""Largest chunk, in bytes."""
Encoding = Literal["same", "changes", "plain"]
"""`same`: nothing is sent, the chunk is the base's; `changes`: zlib of the exclusive or with the base's; `plain`: its bytes."""


def encode(chunk: bytes, base: bytes | None) -> tuple[Encoding, bytes]:
    """Return the shortest encoding of a chunk; `base` is the earlier version's chunk at this place, if it is as long."""
    if base is None or len(base) != len(chunk):
        return "plain", chunk
    if chunk == base:
        return "same", b""
    changes = zlib.compress(_exclusive_or(chunk, base), level=1)
    return ("changes", changes) if len(changes) < len(chunk) else ("plain", chunk)


def decode(encoding: Encoding, content: bytes, size: int, base: bytes | None) -> bytes:
    """Return a chunk of `size` bytes. Raises `UsageError` for content that is none of this size."""
    if encoding == "plain":
        chunk = content
    elif base is None or len(base) != size:
        raise UsageError("The base has no chunk of this size at this place.")
    elif encoding == "same":
        chunk = base
    else:
        chunk = _exclusive_or(_decompressed(content, size), base)
    if len(chunk) != size:
        raise UsageError(f"The chunk has {len(chunk):,} bytes, not {size:,}.")
    return chunk


def _decompressed(content: bytes, size: int) -> bytes:
    try:
        plain = zlib.decompressobj().decompress(
            content, size
        )  # No more than that, whatever it holds.
    except zlib.error as error:
        raise UsageError(f"The changes are no zlib stream: {error}.") from None
    if len(plain) != size:
        raise UsageError(f"The changes have {len(plain):,} bytes, not {size:,}.")
    return plain


def _exclusive_or(left: bytes, right: bytes) -> bytes:
    return np.bitwise_xor(np.frombuffer(left, np.uint8), np.frombuffer(right, np.uint8)).tobytes()
