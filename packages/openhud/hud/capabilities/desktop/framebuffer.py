"""The Remote Framebuffer protocol, version 3.8, client side: handshake and framebuffer updates.

Works on bytes and pixels; independent of keyboards and capabilities.
"""

from __future__ import annotations

import struct
from asyncio import StreamReader, StreamWriter

import numpy as np
from numpy.typing import NDArray

_VERSION = b"RFB 003.008\n"
_NO_PASSWORD, _VNC_PASSWORD = 1, 2
_RAW, _COPY, _DESKTOP_SIZE = 0, 1, -223
_LARGEST, _MOST_PIXELS = 16384, 1 << 25
"""Largest side and area of a screen, in pixels: 8K screens are smaller; larger claims would allocate gigabytes."""
_LONGEST_TEXT = 1 << 24
_PIXEL_BYTES = 4
# 32 bits per pixel, depth 24: blue, green, red, and an unused byte.
_PIXELS = struct.pack(">BBBBHHHBBBxxx", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0)


class ProtocolError(Exception):
    """The server violated the protocol."""


class PasswordRefusedError(Exception):
    """The server rejected the password."""


class Framebuffer:
    """A framebuffer, updated by the server on request."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._pixels: NDArray[np.uint8] = np.zeros((0, 0, _PIXEL_BYTES), np.uint8)

    @property
    def size(self) -> tuple[int, int]:
        height, width, _ = self._pixels.shape
        return width, height

    def colours(self) -> NDArray[np.uint8]:
        """Return a copy of the framebuffer: `(height, width, 3)` uint8, RGB."""
        return np.ascontiguousarray(self._pixels[:, :, 2::-1])

    async def begin(self, password: str | None) -> None:
        """Perform the handshake. Raises `ProtocolError`, `PasswordRefusedError`, or an error of reading."""
        version = await self._read(12)
        if not version.startswith(b"RFB ") or version < _VERSION:
            raise ProtocolError(f"it speaks {version!r}, not RFB 3.8")
        self._writer.write(_VERSION)
        await self._authenticate(password)
        self._writer.write(b"\x01")  # A shared session: other clients stay connected.
        width, height = struct.unpack(">HH", await self._read(4))
        await self._read(len(_PIXELS))
        await self._text()  # The desktop's name.
        self._resize(width, height)
        self._writer.write(b"\x00\0\0\0" + _PIXELS)
        encodings = (_RAW, _COPY, _DESKTOP_SIZE)
        self._writer.write(struct.pack(f">BxH{len(encodings)}i", 2, len(encodings), *encodings))
        await self._writer.drain()

    def ask(self, *, all_of_it: bool = False) -> None:
        """Request an incremental update, sent at the next change; or the whole framebuffer."""
        self._writer.write(struct.pack(">BBHHHH", 3, not all_of_it, 0, 0, *self.size))

    async def hear(self) -> bool:
        """Process one message; returns True for a framebuffer update. Raises `ProtocolError` for an unknown message."""
        kind = (await self._read(1))[0]
        if kind == 0:
            return await self._update()
        if kind == 1:  # Palette entries: unused with true colour.
            _, count = struct.unpack(">xHH", await self._read(5))
            await self._read(6 * count)
        elif kind == 3:
            await self._read(3)
            await self._text()  # Clipboard.
        elif kind != 2:  # Bell.
            raise ProtocolError(f"it sends messages of kind {kind}")
        return False

    async def _authenticate(self, password: str | None) -> None:
        count = (await self._read(1))[0]
        if count == 0:
            raise ProtocolError(f"it refuses: {await self._text()}")
        offered = await self._read(count)
        if password is not None and _VNC_PASSWORD in offered:
            self._writer.write(bytes([_VNC_PASSWORD]))
            self._writer.write(answer_of(await self._read(16), password))
        elif _NO_PASSWORD in offered:
            self._writer.write(bytes([_NO_PASSWORD]))
        else:
            raise PasswordRefusedError(
                "it wants a password" if password is None else "it wants more than a password"
            )
        (refused,) = struct.unpack(">I", await self._read(4))
        if refused:
            raise PasswordRefusedError(await self._text())

    async def _update(self) -> bool:
        (count,) = struct.unpack(">xH", await self._read(3))
        changed = False
        for _ in range(count):
            x, y, width, height, encoding = struct.unpack(">HHHHi", await self._read(12))
            if encoding == _DESKTOP_SIZE:
                self._resize(width, height)
            else:
                await self._rectangle(x, y, width, height, encoding)
            changed = True
        return changed

    async def _rectangle(self, x: int, y: int, width: int, height: int, encoding: int) -> None:
        self._check(x, y, width, height)
        there = self._pixels[y : y + height, x : x + width]
        if encoding == _RAW:
            data = await self._read(width * height * _PIXEL_BYTES)
            there[:] = np.frombuffer(data, np.uint8).reshape(height, width, _PIXEL_BYTES)
        elif encoding == _COPY:
            left, top = struct.unpack(">HH", await self._read(4))
            self._check(left, top, width, height)
            there[:] = self._pixels[top : top + height, left : left + width].copy()
        else:
            raise ProtocolError(f"it sends pixels in encoding {encoding}, which was not asked for")

    def _check(self, x: int, y: int, width: int, height: int) -> None:
        if x + width > self.size[0] or y + height > self.size[1]:
            raise ProtocolError("it sends pixels outside the screen")

    def _resize(self, width: int, height: int) -> None:
        sides = 0 < width <= _LARGEST and 0 < height <= _LARGEST
        if not sides or width * height > _MOST_PIXELS:
            raise ProtocolError(f"its screen has {width} by {height} pixels")
        self._pixels = np.zeros((height, width, _PIXEL_BYTES), np.uint8)

    async def _text(self) -> str:
        (length,) = struct.unpack(">I", await self._read(4))
        if length > _LONGEST_TEXT:
            raise ProtocolError(f"it sends a text of {length} bytes")
        return (await self._read(length)).decode("utf-8", "replace")

    async def _read(self, size: int) -> bytes:
        return await self._reader.readexactly(size)


def answer_of(challenge: bytes, password: str) -> bytes:
    """Return VNC's response: the challenge, encrypted by DES with the password, each byte's bits reversed."""
    from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
    from cryptography.hazmat.primitives.ciphers import Cipher, modes

    letters = password.encode("latin-1", "replace")[:8].ljust(8, b"\0")
    key = bytes(int(f"{letter:08b}"[::-1], 2) for letter in letters)
    # Triple DES with three equal keys is DES.
    encryptor = Cipher(TripleDES(key * 3), modes.ECB()).encryptor()
    return encryptor.update(challenge) + encryptor.finalize()
