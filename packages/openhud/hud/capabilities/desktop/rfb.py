"""`RFBClient`: a desktop over the Remote Framebuffer protocol (VNC), with screen, mouse and keyboard.

The framebuffer is updated on demand: updates are requested only while a method needs the screen.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import ClassVar, Self

from hud.capabilities.capability import RFB, Capability, CapabilityClient
from hud.capabilities.desktop.framebuffer import Framebuffer, PasswordRefusedError, ProtocolError
from hud.capabilities.desktop.png import encode_png, enlarged
from hud.capabilities.keyboard import Key, character, shifted
from hud.capabilities.screen import Button, Point
from hud.errors import EnvironmentFault, InfrastructureFault, UsageError

_CONNECT_SECONDS = 30.0
_SEND_SECONDS = 30.0
_NOTCH_PIXELS = 100
"""Approximate pixels scrolled by one notch of the wheel."""
_MOST_NOTCHES = 100
_LOOK_STILL, _LOOK_SECONDS = 0.06, 0.5
_SETTLE_STILL, _SETTLE_SECONDS = 0.25, 3.0
_BUTTONS = {"left": 1, "middle": 2, "right": 4}
_UP, _DOWN, _LEFT, _RIGHT = 8, 16, 32, 64
_GONE = (OSError, EOFError, ProtocolError)


class RFBClient(CapabilityClient):
    """A connected desktop: a `Screen`."""

    protocol: ClassVar[str] = RFB
    environment: ClassVar[str] = "linux"

    def __init__(self, writer: asyncio.StreamWriter, picture: Framebuffer, where: str) -> None:
        self._writer, self._picture, self._where = writer, picture, where
        self._cursor: Point = (0, 0)
        self._buttons = 0
        self._held: dict[str, int] = {}
        self._asked = False
        self._changed = asyncio.Event()
        self._changes = 0
        self._shot: tuple[int, bytes] = (-1, b"")
        self._lost: str | None = None
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def connect(cls, capability: Capability) -> Self:
        """Connect to `capability.url` (`rfb://host:port`) with `params["password"]`, if set.

        Raises `InfrastructureFault` without an answer, `EnvironmentFault` for another kind of server or a refused password.
        """
        host, port = capability.address
        where = f"{host}:{port}"
        password = capability.params.get("password")
        writer = None
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(host, port)
                picture = Framebuffer(reader, writer)
                await picture.begin(None if password is None else str(password))
                picture.ask(all_of_it=True)
                while not await picture.hear():
                    pass
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()
            if isinstance(error, PasswordRefusedError):
                raise EnvironmentFault(
                    f"The desktop at {where} refuses the connection: {error}."
                ) from error
            if isinstance(error, ProtocolError):
                raise EnvironmentFault(f"The server at {where} is no desktop: {error}.") from error
            if isinstance(error, TimeoutError):
                raise InfrastructureFault(
                    f"No desktop answers at {where} within {_CONNECT_SECONDS:g} s."
                ) from error
            if isinstance(error, OSError | EOFError):
                raise InfrastructureFault(f"No desktop answers at {where} ({error}).") from error
            raise
        return cls(writer, picture, where)

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def fault(self) -> str | None:
        """Return the reason why the desktop was lost, or None."""
        return None if self._lost is None else f"the display is gone: {self._lost}"

    # -- the screen -------------------------------------------------------------------------------

    @property
    def size(self) -> tuple[int, int]:
        return self._picture.size

    @property
    def cursor(self) -> Point:
        return self._cursor

    async def screenshot(self, region: tuple[int, int, int, int] | None = None) -> bytes:
        await self.stand_still(_LOOK_STILL, _LOOK_SECONDS)
        if region is None:
            if self._shot[0] != self._changes:
                changes, pixels = self._changes, self._picture.colours()
                self._shot = changes, await asyncio.to_thread(encode_png, pixels)
            return self._shot[1]
        x0, y0, x1, y1 = region
        pixels = self._picture.colours()[y0:y1, x0:x1]
        return await asyncio.to_thread(encode_png, enlarged(pixels, *self.size))

    async def move(self, point: Point) -> None:
        self._cursor = point
        await self._point()

    async def mouse_down(self, button: Button, count: int = 1) -> None:
        self._buttons |= _bit(button)
        await self._point()

    async def mouse_up(self, button: Button, count: int = 1) -> None:
        self._buttons &= ~_bit(button)
        await self._point()

    async def scroll(self, right: int, down: int) -> None:
        for pixels, less, more in ((right, _LEFT, _RIGHT), (down, _UP, _DOWN)):
            for _ in range(_notches(pixels)):
                await self._point(more if pixels > 0 else less)
                await self._point()

    async def type_text(self, text: str) -> None:
        for letter in text.replace("\r\n", "\n"):
            keysym = character(letter).keysym
            await self._key(keysym, down=True)
            await self._key(keysym, down=False)

    async def key_down(self, key: Key) -> None:
        # Servers expect the keysym with a held Shift applied.
        keysym = (shifted(key) if "Shift" in self._held else key).keysym
        self._held[key.name] = keysym
        await self._key(keysym, down=True)

    async def key_up(self, key: Key) -> None:
        await self._key(self._held.pop(key.name, key.keysym), down=False)

    async def settle(self) -> None:
        await self.stand_still(_SETTLE_STILL, _SETTLE_SECONDS)

    async def stand_still(self, still: float, longest: float) -> bool:
        """Wait until the screen was unchanged for `still` seconds, at most `longest`; returns True if it changed."""
        clock = asyncio.get_running_loop().time
        until = clock() + longest
        before = self._changes
        while (left := until - clock()) > 0:
            self._check()
            self._changed.clear()
            if not self._asked:
                self._asked = True
                self._picture.ask()
            try:
                async with asyncio.timeout(min(still, left)):
                    await self._changed.wait()
            except TimeoutError:
                break
        return self._changes != before

    # -- the wire ---------------------------------------------------------------------------------

    async def _point(self, wheel: int = 0) -> None:
        await self._send(struct.pack(">BBHH", 5, self._buttons | wheel, *self._cursor))

    async def _key(self, keysym: int, *, down: bool) -> None:
        await self._send(struct.pack(">BBxxI", 4, down, keysym))

    async def _send(self, message: bytes) -> None:
        self._check()
        self._writer.write(message)
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._writer.drain()
        except TimeoutError:
            self._lost = f"it takes nothing in, for {_SEND_SECONDS:g} s"
            self._writer.transport.abort()
            self._check()
        except OSError as error:
            self._lost = self._lost or str(error)
            self._check()

    async def _listen(self) -> None:
        """Process the server's messages until the connection ends."""
        try:
            while True:
                if await self._picture.hear():
                    self._asked = False
                    self._changes += 1
                    self._changed.set()
        except _GONE as error:
            self._lost = str(error) or "it closed the connection"
            self._changed.set()

    def _check(self) -> None:
        if self._lost is not None:
            raise EnvironmentFault(f"The desktop at {self._where} is gone: {self._lost}.")


def _bit(button: Button) -> int:
    if button not in _BUTTONS:
        raise UsageError(
            f"A desktop's mouse has no button {button!r}; press the keys alt and Left."
        )
    return _BUTTONS[button]


def _notches(pixels: int) -> int:
    """Return the nearest number of notches; at least one for a distance other than 0."""
    if pixels == 0:
        return 0
    return min(max(1, round(abs(pixels) / _NOTCH_PIXELS)), _MOST_NOTCHES)
