"""A stream of frames over a socket pair, between a process and the one that it forked.

It has the methods of asyncio's streams that the control channel uses, in few functions: a forked process copies each page of
memory that it touches, and asyncio's streams and transports are a fifth of all functions that a short rollout calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from asyncio import IncompleteReadError, LimitOverrunError
from typing import Protocol

_PIECE_BYTES = 1 << 18
_FULL_BYTES = 1 << 20
"""Unsent bytes above which a writer waits."""


class FrameReader(Protocol):
    """The reading side of a stream of frames."""

    async def readuntil(self, separator: bytes = b"\n", /) -> bytes:
        """Return the bytes up to a separator, and the separator.

        Raises `IncompleteReadError` at the end of the stream, `LimitOverrunError` above its limit.
        """
        ...


class FrameWriter(Protocol):
    """The writing side of a stream of frames."""

    def write(self, data: bytes, /) -> None: ...
    async def drain(self) -> None: ...
    def write_eof(self) -> None: ...
    def close(self) -> None: ...
    def is_closing(self) -> bool: ...
    async def wait_closed(self) -> None: ...


class PrivateStream:
    """Both sides of a stream over `ours`, which is closed with it; lines have at most `limit` bytes.

    The running loop receives what arrives; `loop`, one that does not run yet, after `watch`.
    """

    def __init__(
        self, ours: socket.socket, limit: int, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._socket: socket.socket | None = ours
        self._limit = limit
        self._loop = asyncio.get_running_loop() if loop is None else loop
        self._watched = False
        self._received = bytearray()
        self._scanned = 0
        """Received bytes without a separator."""
        self._ended = False
        self._reading: asyncio.Future[None] | None = None
        self._unsent = bytearray()
        self._sending: asyncio.Future[None] | None = None
        if loop is None:
            self.watch()

    def watch(self) -> None:
        """Have the loop receive what arrives, from now on."""
        if self._socket is not None and not self._ended:
            self._watched = True
            self._loop.add_reader(self._socket.fileno(), self._receive)

    def next_line(self) -> bytes | None:
        """Block until a line has arrived, without the loop; None at the end of the stream or above the limit of a line."""
        while (line := self._line()) is None:
            if self._ended or len(self._received) > self._limit:
                return None
            self._receive(flags=0)
        return line

    async def readuntil(self, separator: bytes = b"\n", /) -> bytes:
        while (line := self._line(separator)) is None:
            if len(self._received) > self._limit:
                raise LimitOverrunError("a line is longer than the limit", self._scanned)
            if self._ended:
                raise IncompleteReadError(bytes(self._received), None)
            self._reading = self._loop.create_future()
            await self._reading
        return line

    def _line(self, separator: bytes = b"\n") -> bytes | None:
        """Return the bytes up to a separator that was received, and it; None without one."""
        end = self._received.find(separator, self._scanned)
        if end < 0:
            self._scanned = max(0, len(self._received) + 1 - len(separator))
            return None
        end += len(separator)
        line = bytes(self._received[:end])
        del self._received[:end]
        self._scanned = 0
        return line

    def write(self, data: bytes, /) -> None:
        """Send `data` now if the socket takes it; the rest follows."""
        if self._socket is None:
            return
        waits = bool(self._unsent)
        sent = 0 if waits else self._sent(data)
        if sent < len(data) and not self.is_closing():
            self._unsent += data[sent:]
            if not waits:
                self._loop.add_writer(self._socket.fileno(), self._send)

    async def drain(self) -> None:
        """Wait while much is unsent. Raises `ConnectionResetError` if the peer is gone."""
        while len(self._unsent) > _FULL_BYTES and self._socket is not None:
            if self._sending is None:
                self._sending = self._loop.create_future()
            await asyncio.shield(self._sending)
        if self._socket is None:
            raise ConnectionResetError("the peer is gone")

    def write_eof(self) -> None:
        """End the sending side; what the peer sends still arrives."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # The peer is gone.
                self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket, without what is unsent."""
        ours, self._socket = self._socket, None
        if ours is not None:
            self._unwatch(ours)
            if self._unsent:
                self._loop.remove_writer(ours.fileno())
            ours.close()
        self._end()
        self._sent_all()

    def is_closing(self) -> bool:
        return self._socket is None

    async def wait_closed(self) -> None:
        """No effect: `close` closes at once."""

    def _receive(self, flags: int = socket.MSG_DONTWAIT) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_PIECE_BYTES, flags)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            self._received += data
            if self._reading is not None:
                self._wake()
        else:
            self._unwatch(self._socket)
            self._end()

    def _unwatch(self, ours: socket.socket) -> None:
        if self._watched:
            self._watched = False
            self._loop.remove_reader(ours.fileno())

    def _end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._reading = self._reading, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _send(self) -> None:
        del self._unsent[: self._sent(self._unsent)]
        if not self._unsent and self._socket is not None:
            self._loop.remove_writer(self._socket.fileno())
            self._sent_all()

    def _sent(self, data: bytes | bytearray) -> int:
        """Return the number of bytes that the socket takes; 0, and the stream is closed, if the peer is gone."""
        assert self._socket is not None
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self.close()
            return 0

    def _sent_all(self) -> None:
        self._unsent.clear()
        waiting, self._sending = self._sending, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
