"""Server side of the socket to an engine's process: calls and streams over one connection."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hud.errors import HudError
from hud_platform.models.records import ModelRecord
from hud_platform.serving.frames import pack, pack_model, pack_request, read_error, read_frame
from hud_platform.serving.token_engine import EngineDownError, TokenDelta, TokenEnd, TokenRequest


class RemoteStream:
    """Sequence that is sampled in the other process; buffers its tokens until `take`."""

    def __init__(self) -> None:
        self.end: TokenEnd | None = None
        self.error: HudError | None = None
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._top: list[list[tuple[int, float]]] | None = None
        self._cached = 0
        self._version: str | None = None
        self._drawn = 0
        self._swaps: list[tuple[int, str | None]] = []
        self._waiter: asyncio.Future[None] | None = None

    def take(self) -> TokenDelta | None:
        """Return all tokens since the last call; None if there are none."""
        if not self._ids:
            return None
        self._drawn += len(self._ids)
        delta = TokenDelta(
            self._ids,
            self._logprobs,
            self._top,
            self._cached,
            self._version,
            [swap for swap in self._swaps if swap[0] < self._drawn],
        )
        self._ids, self._logprobs, self._top = [], [], None
        return delta

    async def progress(self) -> None:
        """Wait for more tokens or the end. Raises the error that the stream failed with."""
        if self.error is not None:
            raise self.error
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def put(
        self,
        ids: list[int],
        logprobs: list[float],
        top: Any,
        news: list[Any] | None,
        end: list[Any] | None,
    ) -> None:
        """Add the items of a frame. `news` is sent with the first tokens and after each swap of weights."""
        if news is not None:
            self._cached, self._version, swaps = news
            self._swaps = [(place, checkpoint) for place, checkpoint in swaps]
        if ids:
            self._ids += ids
            self._logprobs += logprobs
            if top is not None:
                self._top = (self._top or []) + [_read_top(row) for row in top]
        if end is not None:
            if end[0] == "error":
                self.error = read_error(end[1:])
            else:
                cut = end[0] == "length"
                self.end = TokenEnd("length" if cut else "stop", end[1], end[2])
        self._wake()

    def fail(self, error: HudError) -> None:
        """End the stream with an error."""
        self.error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Link:
    """Connection to a running engine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._numbers = itertools.count(1)
        self._streams: dict[int, RemoteStream] = {}
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._received = time.monotonic()
        self._closed: EngineDownError | None = None
        self._last: tuple[ModelRecord, Any] | None = None
        """Record and packed data of the last stream's model."""
        self._reading = asyncio.create_task(self._read(reader))

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    @property
    def calls(self) -> int:
        """Number of calls in flight."""
        return len(self._calls)

    @property
    def silent_for(self) -> float:
        """Seconds since the last frame was received."""
        return time.monotonic() - self._received

    async def call(self, kind: str, *rest: Any, body: bytes = b"") -> bytes:
        """Return the response to a call, or raise its error."""
        self._refuse_if_closed()
        number = next(self._numbers)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        try:
            self._write([kind, number, *rest], body)
            with suppress(ConnectionError):  # The reader sets the error on `future`.
                await self._writer.drain()
            return await future
        finally:
            self._calls.pop(number, None)

    @contextmanager
    def stream(
        self, model: ModelRecord, checkpoint: str | None, request: TokenRequest
    ) -> Iterator[RemoteStream]:
        """Request a sequence; leaving the block cancels it."""
        self._refuse_if_closed()
        number = next(self._numbers)
        stream = RemoteStream()
        self._write(["stream", number, self._packed(model), checkpoint, pack_request(request)])
        self._streams[number] = stream
        try:
            yield stream
        finally:
            if self._streams.pop(number, None) is not None and self._closed is None:
                with suppress(EngineDownError):
                    self._write(["cancel", number])

    def _packed(self, model: ModelRecord) -> Any:
        """Return the packed data of a record; most streams have that of the one before."""
        if self._last is None or self._last[0] is not model:
            self._last = model, pack_model(model)
        return self._last[1]

    def pulse(self) -> None:
        """Send a health check; no effect on a connection that has broken."""
        with suppress(EngineDownError):
            self._write(["status", 0])

    async def ended(self, seconds: float) -> bool:
        """Wait up to `seconds` for the connection to end; returns whether it has ended."""
        done, _ = await asyncio.wait([self._reading], timeout=seconds)
        return bool(done)

    def close(self, reason: str) -> None:
        """Close the connection and fail all calls and streams in flight."""
        self._closed = EngineDownError(reason)
        self._reading.cancel()
        self._writer.close()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EngineDownError(reason))
        for stream in self._streams.values():
            stream.fail(EngineDownError(reason))
        self._calls.clear()
        self._streams.clear()

    def _refuse_if_closed(self) -> None:
        if self._closed is not None:
            raise EngineDownError(str(self._closed))

    def _write(self, header: list[Any], body: bytes = b"") -> None:
        if self._writer.transport.is_closing():
            # The process has died, and `close` has not been called yet: uvloop would raise a RuntimeError.
            raise EngineDownError("The engine has just died; it is started again.", 1.0)
        self._writer.write(pack(header, body))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while frame := await read_frame(reader):
            self._received = time.monotonic()
            header, body = frame
            kind, *rest = header
            if kind == "drawn":
                for number, *item in rest[0]:
                    stream = self._streams.get(number)
                    if stream is not None:
                        if item[-1] is not None:
                            del self._streams[number]
                        stream.put(*item)
                continue
            future = self._calls.get(rest[0])
            if future is None or future.done():
                continue  # The caller was cancelled.
            if kind == "answer":
                future.set_result(body)
            else:
                future.set_exception(read_error(rest[1]))


def _read_top(row: list[tuple[int, float | None]]) -> list[tuple[int, float]]:
    # JSON has no infinities: null is the logprob -inf of a token that could not be sampled.
    return [(token, -math.inf if value is None else value) for token, value in row]
