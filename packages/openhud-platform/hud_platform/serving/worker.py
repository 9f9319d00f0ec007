"""Worker of an engine: serves the calls and streams of one server (`remote`) over a socket, in the process of `hud_platform.engine_worker`.

The protocol is `frames`. New tokens of all streams are sent in one frame, and the next frame follows after that write: a slow reader
gets longer frames.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from hud import exact_json
from hud.client.contributor import Contributor
from hud.engine.sample.request import Request, SampledTurn
from hud.errors import HudError, UsageError
from hud_platform.models.records import ModelRecord
from hud_platform.serving.calls import BY_NAME
from hud_platform.serving.frames import pack, pack_error, read_frame, read_model, read_request
from hud_platform.serving.inline import InlineEngine

STREAMS_AT_ONCE = 8
"""Number of open streams above which tokens of several decode steps share a frame."""
SECONDS_EACH = 0.00004
"""Processor time for one stream's part of a frame, in seconds, both processes together."""


class Worker:
    """Serves one server."""

    def __init__(self, engine: InlineEngine, writer: asyncio.StreamWriter) -> None:
        self.engine = engine
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, _Stream] = {}
        self._ended: list[list[Any]] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._woken = asyncio.Event()
        self._lock = threading.Lock()
        self._told = False
        self._last: tuple[Any, ModelRecord] | None = None
        """Packed data and record of the last stream's model."""

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Serve until the server sends `stop` or disconnects."""
        pump = asyncio.create_task(self._pump())
        try:
            while frame := await read_frame(reader):
                header, body = frame
                kind, number, *rest = header
                if kind == "cancel":
                    self._cancel(number)
                elif kind == "stop":
                    await self.engine.stop()
                    await self._send(["answer", number])
                    return
                elif kind == "stream":
                    self._begin(number, self._stream(number, *rest))
                else:
                    self._begin(number, self._call(kind, number, rest, body))
        finally:
            pump.cancel()

    def _begin(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[number] = task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _call(self, kind: str, number: int, rest: list[Any], body: bytes) -> None:
        try:
            answer = await self._answer(kind, rest, body)
        except Exception as error:
            if not isinstance(error, HudError):
                traceback.print_exc()
            await self._send(["error", number, pack_error(error)])
        else:
            await self._send(["answer", number], answer)

    async def _answer(self, kind: str, rest: list[Any], body: bytes) -> bytes:
        if kind == "status":
            return exact_json.dumps(await self.engine.status())
        # A batch may be large: it is parsed in a thread to keep streams responsive.
        read = BY_NAME[kind].call.request.model_validate_json
        try:
            request = await asyncio.to_thread(read, body)
        except ValidationError as error:
            problem = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(map(str, problem["loc"])) or "the request"
            raise UsageError(f"The engine cannot read {kind}: {place}: {problem['msg']}.") from None
        return await self.engine.call(read_model(rest[0]), request, Contributor(*rest[1]))

    async def _stream(self, number: int, model: Any, checkpoint: str | None, packed: Any) -> None:
        try:
            token_request = read_request(packed)
            drawn = await self.engine.submit(
                self._model_of(model), checkpoint, token_request, self._notify
            )
        except Exception as error:
            if not isinstance(error, HudError):
                traceback.print_exc()
            self._ended.append([number, [], [], None, None, ["error", *pack_error(error)]])
            self._woken.set()
        except asyncio.CancelledError:
            return
        else:
            self._streams[number] = _Stream(drawn)

    def _model_of(self, packed: Any) -> ModelRecord:
        """Return the record of packed data; most streams have that of the one before."""
        if self._last is None or self._last[0] != packed:
            self._last = packed, read_model(packed)
        return self._last[1]

    def _cancel(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.drawn.abandon()
        elif number in self._tasks:
            self._tasks[number].cancel()

    def _notify(self) -> None:
        """Notify of new tokens. Called from samplers' threads."""
        with self._lock:
            if self._told:
                return
            self._told = True
        self._loop.call_soon_threadsafe(self._woken.set)

    async def _pump(self) -> None:
        while True:
            await self._woken.wait()
            with self._lock:
                self._told = False
            self._woken.clear()
            open_streams = len(self._streams)
            items = self._drawn()
            if items:
                await self._send(["drawn", items])
            if open_streams > STREAMS_AT_ONCE:
                await asyncio.sleep(open_streams * SECONDS_EACH)

    def _drawn(self) -> list[list[Any]]:
        """Return the new items of every stream."""
        items, self._ended = self._ended, []
        done: list[int] = []
        for number, stream in self._streams.items():
            item = stream.item(number)
            if item is not None:
                items.append(item)
                if item[-1] is not None:
                    done.append(number)
        for number in done:
            del self._streams[number]
        return items

    async def _send(self, header: list[Any], body: bytes = b"") -> None:
        self._writer.write(pack(header, body))
        # A disconnected server is detected by the reader.
        with suppress(ConnectionError):
            await self._writer.drain()


class _Stream:
    """A sequence, with the number of tokens sent."""

    def __init__(self, drawn: Request) -> None:
        self.drawn = drawn
        self._seen = 0
        self._swaps = -1

    def item(self, number: int) -> list[Any] | None:
        """Return the tokens since the last item, and the end if there is one; None without news."""
        drawn, seen = self.drawn, self._seen
        # Read before the tokens: if the sequence has ended, all of its tokens are visible.
        outcome = drawn.outcome
        end = drawn.shown
        if outcome is None and end == seen:
            return None
        self._seen = end
        return [
            number,
            drawn.token_ids[seen:end],
            drawn.logprobs[seen:end],
            drawn.likeliest[seen:end] if drawn.top else None,
            self._news(),
            _packed_end(outcome),
        ]

    def _news(self) -> list[Any] | None:
        """Fields sent with the first tokens, and again after each weight swap."""
        drawn, swaps = self.drawn, len(self.drawn.swaps)
        if self._swaps == swaps:
            return None
        self._swaps = swaps
        return [drawn.cached, drawn.version, drawn.swaps]


def _packed_end(outcome: SampledTurn | HudError | None) -> list[Any] | None:
    if outcome is None:
        return None
    if isinstance(outcome, HudError):
        return ["error", *pack_error(outcome)]
    return [outcome.finish_reason, outcome.cached_tokens, outcome.version]
