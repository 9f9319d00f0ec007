"""Format and size of an image, from its header, to decide whether a browser may load it.
An image of a few kilobytes may declare a billion pixels, for which a browser would allocate memory. Nothing is decoded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hud.errors import UsageError

MOST_PIXELS = 50_000_000
"""Maximum number of pixels of one picture; an 8K screen has 33 million."""
MOST_PIXELS_MOVING = 500_000_000
"""Maximum number of pixels of all frames of an animated image together."""
MOST_BYTES = 50 << 20

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of frames, which contain the size; the excluded ones define tables."""
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD8)})
"""Markers without a length."""


class ImageRefusedError(UsageError):
    """Image that is not sent to browsers."""

    status = 415


@dataclass(frozen=True)
class Raster:
    """Raster image: media type, size in pixels, and number of frames."""

    media_type: str
    extension: str
    width: int
    height: int
    pictures: int = 1


def raster(data: bytes) -> Raster:
    """Return format and size from an image's header, independent of its declared type.
    Raises `ImageRefusedError` for anything except PNG, JPEG, GIF and WebP (an SVG can run scripts), and for images so
    large that they could crash a browser.
    """
    if len(data) > MOST_BYTES:
        raise ImageRefusedError(f"This image has {len(data) >> 20} MB, which is too large to show.")
    try:
        header = _read(data)
    except (struct.error, IndexError):
        header = None
    if header is None:
        raise ImageRefusedError("This is not a PNG, JPEG, GIF or WebP image, so it is not shown.")
    pixels = header.width * header.height
    if pixels == 0:
        raise ImageRefusedError("This image has no pixels.")
    if pixels > MOST_PIXELS or pixels * header.pictures > MOST_PIXELS_MOVING:
        raise ImageRefusedError(
            f"This image declares {header.width:,} × {header.height:,} pixels, which is too much to show."
        )
    return header


def _read(data: bytes) -> Raster | None:
    if data.startswith(_PNG) and data[12:16] == b"IHDR":
        width, height = struct.unpack_from(">II", data, 16)
        return Raster("image/png", "png", width, height, _png_pictures(data))
    if data.startswith((b"GIF87a", b"GIF89a")):
        width, height = struct.unpack_from("<HH", data, 6)
        # Every frame of an animated image begins with a graphic control extension.
        return Raster("image/gif", "gif", width, height, max(1, data.count(b"\x21\xf9\x04")))
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    return None


def _png_pictures(data: bytes) -> int:
    at = data.find(b"acTL")
    if at < 0:
        return 1
    pictures: int = struct.unpack_from(">I", data, at + 4)[0]
    return max(1, pictures)


def _jpeg(data: bytes) -> Raster | None:
    at = 2
    while at < len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # Padding.
            at += 1
            continue
        if marker in _JPEG_BARE:
            at += 2
            continue
        if marker in _JPEG_SIZES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return Raster("image/jpeg", "jpg", width, height)
        (length,) = struct.unpack_from(">H", data, at + 2)
        at += 2 + max(2, length)
    return None


def _webp(data: bytes) -> Raster | None:
    kind = data[12:16]
    pictures = max(1, data.count(b"ANMF"))
    if kind == b"VP8X":
        width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
    elif kind == b"VP8L" and data[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", data, 21)
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    elif kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = (size & 0x3FFF for size in struct.unpack_from("<HH", data, 26))
    else:
        return None
    return Raster("image/webp", "webp", width, height, pictures)
