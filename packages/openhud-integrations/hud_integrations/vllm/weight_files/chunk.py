"""Encodings of a chunk of a file of weights.

A step of training changes few bytes of 16-bit weights. Each is sent with its distance from the one before, which zlib compresses
to little more than a byte for both.
"""

from __future__ import annotations

import struct
import zlib
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hud.errors import UsageError

CHUNK_BYTES = 4 << 20
"""Largest chunk, in bytes."""
Encoding = Literal["same", "changes", "plain"]
"""`same`: nothing is sent, the chunk is the base's; `changes`: zlib of the bytes that differ from the base's; `plain`: its bytes."""
_COUNT = struct.Struct(">I")
_FAR = 255
"""Distance byte that adds so many bytes to the next one."""


def encode(chunk: bytes, base: bytes | None) -> tuple[Encoding, bytes]:
    """Return the shortest encoding of a chunk; `base` is the earlier version's chunk at this place, if it is as long."""
    if base is None or len(base) != len(chunk):
        return "plain", chunk
    if chunk == base:
        return "same", b""
    differences = np.bitwise_xor(_bytes(chunk), _bytes(base))
    changes = zlib.compress(_packed(differences), level=1)
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
        differences = _unpacked(_decompressed(content, size), size)
        chunk = np.bitwise_xor(differences, _bytes(base)).tobytes()
    if len(chunk) != size:
        raise UsageError(f"The chunk has {len(chunk):,} bytes, not {size:,}.")
    return chunk


def _packed(differences: NDArray[np.uint8]) -> bytes:
    """Return the distances between the bytes that are not 0, and these: number of distance bytes (4 bytes), distances, bytes.

    A distance counts the zeros in between: its last byte, and `_FAR` for each byte of `_FAR` before that.
    """
    places = np.flatnonzero(differences != 0)  # Of booleans it is three times as fast.
    zeros = np.diff(places, prepend=-1) - 1
    ends = np.cumsum(zeros // _FAR + 1)
    distances = np.full(ends[-1], _FAR, np.uint8)
    distances[ends - 1] = zeros % _FAR
    return _COUNT.pack(len(distances)) + distances.tobytes() + differences[places].tobytes()


def _unpacked(packed: bytes, size: int) -> NDArray[np.uint8]:
    """Return what `_packed` packed, of `size` bytes; raises `UsageError` for anything else."""
    differences = np.zeros(size, np.uint8)
    count = _COUNT.unpack(packed[: _COUNT.size])[0] if len(packed) >= _COUNT.size else -1
    distances, changed = (
        _bytes(packed[_COUNT.size :])[:count],
        _bytes(packed)[_COUNT.size + count :],
    )
    ends = np.flatnonzero(distances != _FAR)
    places = np.cumsum(distances, dtype=np.int64)[ends] + np.arange(len(ends))
    if count < 0 or len(changed) != len(ends) or (len(ends) and places[-1] >= size):
        raise UsageError(f"The changes are none of a chunk of {size:,} bytes.")
    differences[places] = changed
    return differences


def _decompressed(content: bytes, size: int) -> bytes:
    most = _COUNT.size + 2 * size + size // _FAR
    try:
        # No more than that, whatever it holds.
        return zlib.decompressobj().decompress(content, most)
    except zlib.error as error:
        raise UsageError(f"The changes are no zlib stream: {error}.") from None


def _bytes(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(content, np.uint8)
