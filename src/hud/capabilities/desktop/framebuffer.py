"""The Remote Framebuffer protocol, version 3.8, from the viewer's side: getting in, and the picture.

It knows bytes and pixels. It knows nothing of keyboards, of capabilities, or of who looks.
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
"""Screens of 8K have fewer; a server that claims more would cost us gigabytes."""
_LONGEST_TEXT = 1 << 24
_PIXEL_BYTES = 4
# 32 bits a pixel, 24 of them colour: blue first, then green, red, and a byte of nothing.
_PIXELS = struct.pack(">BBBBHHHBBBxxx", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0)


class ProtocolError(Exception):
    """The other side said what no server says."""


class PasswordRefusedError(Exception):
    """The other side does not let us in."""


class Framebuffer:
    """A picture that a server keeps up to date, when it is asked to."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._pixels: NDArray[np.uint8] = np.zeros((0, 0, _PIXEL_BYTES), np.uint8)

    @property
    def size(self) -> tuple[int, int]:
        height, width, _ = self._pixels.shape
        return width, height

    def colours(self) -> NDArray[np.uint8]:
        """Return a copy of the picture, `(height, width, 3)`, red first."""
        return np.ascontiguousarray(self._pixels[:, :, 2::-1])

    async def begin(self, password: str | None) -> None:
        """Get in, and agree on pixels. Raises `ProtocolError`, `PasswordRefusedError`, or what reading raises."""
        version = await self._read(12)
        if not version.startswith(b"RFB ") or version < _VERSION:
            raise ProtocolError(f"it speaks {version!r}, not RFB 3.8")
        self._writer.write(_VERSION)
        await self._authenticate(password)
        self._writer.write(b"\x01")  # Others may look, too.
        width, height = struct.unpack(">HH", await self._read(4))
        await self._read(len(_PIXELS))
        await self._text()  # Its name.
        self._resize(width, height)
        self._writer.write(b"\x00\0\0\0" + _PIXELS)
        encodings = (_RAW, _COPY, _DESKTOP_SIZE)
        self._writer.write(struct.pack(f">BxH{len(encodings)}i", 2, len(encodings), *encodings))
        await self._writer.drain()

    def ask(self, *, all_of_it: bool = False) -> None:
        """Ask for what changes, as soon as something has; or for the whole picture."""
        self._writer.write(struct.pack(">BBHHHH", 3, not all_of_it, 0, 0, *self.size))

    async def hear(self) -> bool:
        """Take one message; True where it brought pixels. Raises `ProtocolError` for an unknown one."""
        kind = (await self._read(1))[0]
        if kind == 0:
            return await self._update()
        if kind == 1:  # Colours of a palette, which our pixels do not have.
            _, count = struct.unpack(">xHH", await self._read(5))
            await self._read(6 * count)
        elif kind == 3:
            await self._read(3)
            await self._text()  # Its clipboard.
        elif kind != 2:  # A bell.
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
            raise ProtocolError("it sends pixels beside the screen")

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
    """Return what VNC wants to hear: the challenge, encrypted by DES with the password, its bits turned round."""
    from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
    from cryptography.hazmat.primitives.ciphers import Cipher, modes

    letters = password.encode("latin-1", "replace")[:8].ljust(8, b"\0")
    key = bytes(int(f"{letter:08b}"[::-1], 2) for letter in letters)
    # Three times the same key: DES, once.
    encryptor = Cipher(TripleDES(key * 3), modes.ECB()).encryptor()
    return encryptor.update(challenge) + encryptor.finalize()
