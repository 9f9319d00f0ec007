"""The host's ends of a sandboxed process's pipes."""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import termios
from collections.abc import Callable

_LOOK_SECONDS = 0.1


class Outgoing(asyncio.Protocol):
    """Reader of a pipe until all its writers have closed it."""

    def __init__(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        self._descriptor = descriptor
        self._take = take
        self._transport: asyncio.ReadTransport | None = None
        self._closed = asyncio.get_running_loop().create_future()
        self._paused = False

    @classmethod
    async def read(cls, descriptor: int, take: Callable[[bytes], None]) -> Outgoing:
        """Read from `descriptor`, closed with this object, and call `take` for each chunk."""
        loop = asyncio.get_running_loop()
        outgoing = cls(descriptor, take)
        await loop.connect_read_pipe(lambda: outgoing, os.fdopen(descriptor, "rb", 0))
        return outgoing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self._closed.done():
            self._closed.set_result(None)

    def pause(self) -> None:
        """Stop reading until `resume`; the pipe's writers block."""
        if not self._paused and self._transport is not None and not self._closed.done():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None and not self._closed.done():
            self._paused = False
            self._transport.resume_reading()

    async def drained(self) -> None:
        """Wait until all output of the ended process was passed on.

        Its background processes may hold the pipe open forever.
        """
        while not self._closed.done():
            await asyncio.wait([self._closed], timeout=_LOOK_SECONDS)
            if not self._closed.done() and not self._paused and not _waiting(self._descriptor):
                return

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Ingoing(asyncio.BaseProtocol):
    """Writer of a pipe, with callbacks for a full and a drained buffer."""

    def __init__(self, on_full: Callable[[], None], on_room: Callable[[], None]) -> None:
        self.pause_writing = on_full  # type: ignore[method-assign]
        self.resume_writing = on_room  # type: ignore[method-assign]
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def write(
        cls, descriptor: int, on_full: Callable[[], None], on_room: Callable[[], None]
    ) -> Ingoing:
        """Write to `descriptor`, closed with this object."""
        loop = asyncio.get_running_loop()
        ingoing = cls(on_full, on_room)
        await loop.connect_write_pipe(lambda: ingoing, os.fdopen(descriptor, "wb", 0))
        return ingoing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def put(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def finish(self) -> None:
        """Close it after the pending data."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def close(self) -> None:
        transport = self._transport
        if transport is None or (transport.is_closing() and not transport.get_write_buffer_size()):
            return  # Closed already: asyncio would fail to close it twice.
        transport.abort()


def _waiting(descriptor: int) -> int:
    """Return the number of bytes available to read."""
    available = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, available)
    return available[0]
