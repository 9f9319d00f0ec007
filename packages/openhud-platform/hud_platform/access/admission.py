"""Admission of a request: messages of its response pass only while its key or session is valid."""

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
"""Seconds for which a stream may continue after its key was revoked or has expired."""
ACCESS_DENIED = 4003
"""Close code of a refused WebSocket, expected by clients of build logs."""


class KeyEndedError(PlatformError):
    """The key of a request was revoked or expired during the response."""

    def __init__(self) -> None:
        super().__init__("This key was revoked or expired during the response.", 401)


class Admission:
    """Response to one request. The key is checked again after every second."""

    def __init__(
        self,
        send: Callable[[Message], Awaitable[None]],
        recheck: Recheck,
    ) -> None:
        self.ended = False
        self.begun = False
        """True once the response's headers were sent."""
        self.finished = False
        self._send, self._recheck = send, recheck
        self._until = time.monotonic() + EVERY_SECONDS

    async def send(self, message: Message) -> None:
        """Forward a message of an HTTP response. Raises `KeyEndedError`, once, if the key is no longer valid."""
        if time.monotonic() > self._until and not self.ended and not await self._look():
            raise KeyEndedError
        kind = message["type"]
        if kind == "http.response.start":
            self.begun = True
        elif kind == "http.response.body" and not message.get("more_body"):
            self.finished = True
        await self._send(message)

    async def watch(self) -> None:
        """Return when the key is no longer valid, for responses with long pauses between messages."""
        while True:
            if not await self._look():
                return
            await asyncio.sleep(EVERY_SECONDS)

    async def _look(self) -> bool:
        if self.ended:
            return False
        with suppress(StoreError):  # While the store is unavailable, keys stay valid.
            self.ended = not await self._recheck()
        self._until = time.monotonic() + EVERY_SECONDS
        return not self.ended

    async def close(self) -> None:
        """Close the WebSocket with the code of a refusal."""
        with suppress(RuntimeError):  # It may be closed already.
            reason = "This key was revoked, or has expired."
            await self._send({"type": "websocket.close", "code": ACCESS_DENIED, "reason": reason})
