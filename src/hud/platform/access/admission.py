"""A request that was let in: its messages pass only while what let it in is worth something."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from hud.errors import PlatformError, StoreError

Message = dict[str, Any]
Recheck = Callable[[], Awaitable[bool]]

EVERY_SECONDS = 1.0
"""Seconds for which a stream may go on after its key was revoked or has expired."""
ACCESS_DENIED = 4003
"""Close code of a refused WebSocket, as clients of build logs know it."""


class KeyEndedError(PlatformError):
    """The key of a request ended while the answer was on its way."""

    def __init__(self) -> None:
        super().__init__(
            "This key was revoked, or has expired, while the answer was on its way.", 401
        )


class Admission:
    """Answer to one request. The key of an answer that takes less than a second is not checked again."""

    def __init__(
        self,
        send: Callable[[Message], Awaitable[None]],
        recheck: Recheck,
    ) -> None:
        self.ended = False
        self.begun = False
        """True once the answer's head was sent."""
        self.finished = False
        self._send, self._recheck = send, recheck
        self._until = time.monotonic() + EVERY_SECONDS

    async def send(self, message: Message) -> None:
        """Pass a message of an HTTP answer on. Raises `KeyEndedError`, once, where the key has ended."""
        if time.monotonic() > self._until and not self.ended and not await self._look():
            raise KeyEndedError
        kind = message["type"]
        if kind == "http.response.start":
            self.begun = True
        elif kind == "http.response.body" and not message.get("more_body"):
            self.finished = True
        await self._send(message)

    async def watch(self) -> None:
        """Return once the key has ended: for answers that may say nothing for long."""
        while True:
            if not await self._look():
                return
            await asyncio.sleep(EVERY_SECONDS)

    async def _look(self) -> bool:
        if self.ended:
            return False
        with suppress(StoreError):  # While the store is away no key is revoked.
            self.ended = not await self._recheck()
        self._until = time.monotonic() + EVERY_SECONDS
        return not self.ended

    async def close(self) -> None:
        """Close the WebSocket, with the code of one that is refused."""
        with suppress(RuntimeError):  # It may be closed already.
            said = "This key was revoked, or has expired."
            await self._send({"type": "websocket.close", "code": ACCESS_DENIED, "reason": said})
