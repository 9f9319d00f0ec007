"""PNG encoding of pixels."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEVEL = 4
"""zlib level: for screens, higher levels cost more time than they save bytes."""


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return the PNG file of `(height, width, 3)` uint8 RGB pixels."""
    height, width, _ = pixels.shape
    rows = np.empty((height, 1 + 3 * width), dtype=np.uint8)
    rows[:, 0] = (
        2  # Filter "up": each row as the difference to the row above, which is mostly zeros.
    )
    flat = pixels.reshape(height, 3 * width)
    rows[0, 1:] = flat[0]
    np.subtract(flat[1:], flat[:-1], out=rows[1:, 1:])
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), _LEVEL)),
            _chunk(b"IEND", b""),
        ]
    )


def enlarged(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Return the pixels enlarged to a size, by nearest neighbour."""
    rows: Any = np.arange(height) * pixels.shape[0] // height
    columns: Any = np.arange(width) * pixels.shape[1] // width
    stretched: NDArray[np.uint8] = pixels[rows][:, columns]
    return stretched


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
