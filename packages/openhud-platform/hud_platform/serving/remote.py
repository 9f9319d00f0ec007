"""Token engine in a worker process, which this module starts, supervises and restarts.
A slow training pass cannot block the server's event loop, and a crash of the engine does not affect the server.
Requests in flight during a crash fail with `EngineDownError`; models continue from their last checkpoints.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from hud import exact_json
from hud.client.contributor import UNNAMED, Contributor
from hud.errors import UsageError
from hud.processes.backoff import Backoff
from hud.processes.child import Child
from hud_platform.models.records import ModelRecord
from hud_platform.process.config import PlatformConfig
from hud_platform.serving.calls import BY_REQUEST
from hud_platform.serving.frames import pack, pack_model, read_frame
from hud_platform.serving.link import Link
from hud_platform.serving.token_engine import (
    EngineDownError,
    TokenDelta,
    TokenEnd,
    TokenEngine,
    TokenRequest,
)

log = logging.getLogger("hud.platform")

START_SECONDS = 120.0
"""Time-out for the start of a process: it imports torch, and may wait for a database."""
STOP_SECONDS = 15.0
"""Time for a process to end by itself before it is killed."""
PULSE_SECONDS = 20.0
"""Interval between two health checks."""
SILENT_SECONDS = 120.0
"""Time without a response after which a process is killed."""
RESTARTS = Backoff(0.2, longest_seconds=30.0)
STEADY_SECONDS = 60.0
"""Uptime after which a crash counts as the first failure, so that restarts begin with the shortest delay."""


class WorkerEngine(TokenEngine):
    """`TokenEngine` over a worker process. Use on one event loop."""

    def __init__(self, config: PlatformConfig, after: Collection[asyncio.Task[None]] = ()) -> None:
        self.config = config
        self._after = set(after)
        """Tasks to await before the start: a predecessor process may still hold leases of the models."""
        self._used = time.monotonic()
        self._process: Child | None = None
        self._link: Link | None = None
        self._starting: asyncio.Task[Link] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._failures = 0
        self._expected = 0.0
        """Monotonic time at which the engine is expected to respond again."""
        self._stopped = False

    @property
    def idle_since(self) -> float | None:
        """Time of the last request, on the monotonic clock; None while it is busy or starting."""
        busy = self._link is None or self._link.streams or self._link.calls
        return None if busy else self._used

    @property
    def pid(self) -> int | None:
        """Process id; None without a process."""
        return None if self._process is None else self._process.pid

    async def stream(
        self, model: ModelRecord, checkpoint: str | None, request: TokenRequest
    ) -> AsyncGenerator[TokenDelta | TokenEnd, None]:
        link = await self._linked()
        with link.stream(model, checkpoint, request) as stream, self._in_use():
            while True:
                delta = stream.take()
                if delta is not None:
                    yield delta
                elif stream.end is not None:
                    yield stream.end
                    return
                else:
                    await stream.progress()

    async def call(
        self, model: ModelRecord, body: BaseModel, client: Contributor = UNNAMED
    ) -> bytes:
        """See `TokenEngine.call`. Raises `UsageError` also for a request that is nested too deep."""
        name = BY_REQUEST[type(body)].call.name
        try:
            packed = await asyncio.to_thread(to_json, body)
        except PydanticSerializationError:
            raise UsageError(f"The request {name} is nested too deep.") from None
        link = await self._linked()
        with self._in_use():
            return await link.call(name, pack_model(model), astuple(client), body=packed)

    async def status(self) -> dict[str, Any]:
        if self._link is None:
            return {"pid": None, "streams": 0, "models": []}
        status: dict[str, Any] = exact_json.loads(await self._link.call("status"))
        return {**status, "pid": self.pid, "streams": self._link.streams}

    @property
    def up(self) -> bool:
        """False while the process restarts or cannot be started. True for an engine that was not needed yet."""
        return self._link is not None or not self._failures

    @property
    def streams(self) -> int:
        return 0 if self._link is None else self._link.streams

    async def start(self) -> None:
        await self._linked()

    async def stop(self) -> None:
        """Stop the process after it has released its leases; kill it after `STOP_SECONDS`."""
        self._stopped = True
        for task in (self._starting, self._watching):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError, EngineDownError):
                    await task
        link = self._link
        if link is not None:
            with suppress(TimeoutError, EngineDownError):
                await asyncio.wait_for(link.call("stop"), STOP_SECONDS)
            link.close("The server is stopping.")
            self._link = None
        await self._end(STOP_SECONDS)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._used = time.monotonic()

    async def _linked(self) -> Link:
        """Return the link to a running process. Waits for the first start, not for a restart."""
        if self._link is not None:
            return self._link
        if self._stopped:
            raise EngineDownError("The server is stopping.")
        if self._failures:
            wait = max(1.0, self._expected - time.monotonic())
            raise EngineDownError("The engine is being started again; try again in a moment.", wait)
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(0.0))
        # Shared with other callers: a cancelled one must not cancel it.
        return await asyncio.shield(self._starting)

    async def _start(self, wait: float) -> Link:
        """Start processes until one responds."""
        while True:
            started = time.monotonic()
            self._expected = started + wait + 3.0
            await asyncio.sleep(wait)
            try:
                link = await asyncio.wait_for(self._spawn(), START_SECONDS)
            except (OSError, TimeoutError, EngineDownError) as error:
                self._failures += 1
                wait = RESTARTS.seconds(self._failures)
                log.error("The engine could not be started (%s); again in %.1f s.", error, wait)
                await self._end(0.0)
                if self._failures == 1:
                    # Callers that wait for the first start get this error; the restart continues in a new task.
                    self._starting = asyncio.create_task(self._start(wait))
                    raise EngineDownError(
                        "The engine could not be started; see the server's log for the reason.",
                        wait,
                    ) from error
                continue
            self._link, self._starting = link, None
            self._watching = asyncio.create_task(self._watch(link))
            return link

    async def _spawn(self) -> Link:
        if self._after:
            await asyncio.wait(self._after)
            self._after.clear()
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            command = [sys.executable, "-m", "hud_platform.engine_worker", str(fd)]
            self._process = Child(command, descriptors=[fd])
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)
        config = self.config
        # Sampling leaves a core to the server's event loop: both on one core each is faster than both on all of them.
        threads = max(1, (os.cpu_count() or 1) - 1)
        hello = [str(config.home.absolute()), config.database, config.storage, threads]
        try:
            writer.write(pack(["hello", *hello]))
            if await read_frame(reader) is None:
                raise EngineDownError("its process ended at once")
        except BaseException:
            writer.close()
            raise
        return Link(reader, writer)

    async def _watch(self, link: Link) -> None:
        """Wait until the process exits or stops responding, then start another one."""
        since = time.monotonic()
        while not await link.ended(PULSE_SECONDS):
            link.pulse()
            if link.silent_for > SILENT_SECONDS:
                log.error("The engine has not answered for %.0f s; it is killed.", link.silent_for)
                break
        self._link = None
        steady = time.monotonic() - since > STEADY_SECONDS
        self._failures = 1 if steady else self._failures + 1
        wait = RESTARTS.seconds(self._failures)
        self._expected = time.monotonic() + wait + 3.0
        # Before a successor starts: two processes must not hold a lease.
        await self._end(0.0)
        link.close(
            "The engine crashed during this request; its models continue from their last checkpoints. Try again in a moment."
        )
        log.error("The engine's process died; it restarts in %.1f s.", wait)
        self._starting = asyncio.create_task(self._start(wait))
        await self._starting

    async def _end(self, patience: float) -> None:
        """Wait for the process to end, and kill it after `patience` seconds."""
        process, self._process = self._process, None
        if process is not None:
            await process.end(patience)
