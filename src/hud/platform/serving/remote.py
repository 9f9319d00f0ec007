"""The token engine in a process of its own, which this module starts, asks, and starts again when it dies.

A slow pass of training then never holds up the server's event loop, and nothing that the engine does can take the server
down. What was in flight when it died fails with `EngineDownError`; its models go on from their last checkpoints.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic_core import to_json

from hud.platform.config import PlatformConfig
from hud.platform.models.records import ModelRecord
from hud.platform.serving.calls import BY_REQUEST
from hud.platform.serving.frames import pack, pack_model, read_frame
from hud.platform.serving.link import Link
from hud.platform.serving.token_engine import (
    EngineDownError,
    TokenDelta,
    TokenEnd,
    TokenEngine,
    TokenRequest,
)
from hud.train.contributor import UNNAMED, Contributor

log = logging.getLogger(__name__)

START_SECONDS = 120.0
"""Seconds until a new process must answer: it imports torch, and may wait for a database."""
STOP_SECONDS = 15.0
"""Seconds that it has to end by itself."""
PULSE_SECONDS = 20.0
"""Seconds between two health checks."""
SILENT_SECONDS = 120.0
"""A process that has not answered for so long is killed."""
FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A process that lived this long did not fail because of how it was started."""


class WorkerEngine(TokenEngine):
    """`TokenEngine` over a process. Belongs to one event loop."""

    def __init__(self, config: PlatformConfig, after: Collection[asyncio.Task[None]] = ()) -> None:
        self.config = config
        self._after = set(after)
        """Process that has to end first: a predecessor may still hold leases of its models."""
        self._used = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._starting: asyncio.Task[Link] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._failures = 0
        self._expected = 0.0
        """Time at which it is expected to answer again."""
        self._stopped = False

    @property
    def idle_since(self) -> float | None:
        """Time of the last request, on the monotonic clock; None while it works or starts."""
        busy = self._link is None or self._link.streams or self._link.calls
        return None if busy else self._used

    @property
    def pid(self) -> int | None:
        """The process, where there is one."""
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
        name = BY_REQUEST[type(body)].call.name
        packed = await asyncio.to_thread(to_json, body)
        link = await self._linked()
        with self._in_use():
            return await link.call(name, pack_model(model), astuple(client), body=packed)

    async def status(self) -> dict[str, Any]:
        if self._link is None:
            return {"pid": None, "streams": 0, "models": []}
        told: dict[str, Any] = orjson.loads(await self._link.call("status"))
        return {**told, "pid": self.pid, "streams": self._link.streams}

    @property
    def up(self) -> bool:
        """False while its process is started again, or could not be; one that was not needed yet is up."""
        return self._link is not None or not self._failures

    @property
    def streams(self) -> int:
        return 0 if self._link is None else self._link.streams

    async def start(self) -> None:
        await self._linked()

    async def stop(self) -> None:
        """Let the process give leases back and end; kill it where it does not."""
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
        """Return the link to a process that answers; waits for the first start, never for a later one."""
        if self._link is not None:
            return self._link
        if self._stopped:
            raise EngineDownError("The server is stopping.")
        if self._failures:
            wait = max(1.0, self._expected - time.monotonic())
            raise EngineDownError("The engine is being started again; try again in a moment.", wait)
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(0.0))
        # Shared with whoever else waits: a caller who goes away must not end it.
        return await asyncio.shield(self._starting)

    async def _start(self, wait: float) -> Link:
        """Start a process until one answers."""
        while True:
            started = time.monotonic()
            self._expected = started + wait + 3.0
            await asyncio.sleep(wait)
            try:
                link = await asyncio.wait_for(self._spawn(), START_SECONDS)
            except (OSError, TimeoutError, EngineDownError) as error:
                self._failures += 1
                wait = self._wait()
                log.error("The engine could not be started (%s); again in %.1f s.", error, wait)
                await self._end(0.0)
                if self._failures == 1:
                    # Whoever waited for the first start is told; others are told while it is tried on.
                    self._starting = asyncio.create_task(self._start(wait))
                    raise EngineDownError(
                        "The engine could not be started; the server's log says why.", wait
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
            self._process = _begin(theirs)
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)
        config = self.config
        # One core is left to the server's event loop: both on one core each is faster than both on all of them.
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
        """Wait for a process to die, or to fall silent; then start another."""
        since = time.monotonic()
        while not await link.ended(PULSE_SECONDS):
            link.pulse()
            if link.silent_for > SILENT_SECONDS:
                log.error("The engine has not answered for %.0f s; it is killed.", link.silent_for)
                break
        self._link = None
        steady = time.monotonic() - since > STEADY_SECONDS
        self._failures = 1 if steady else self._failures + 1
        wait = self._wait()
        self._expected = time.monotonic() + wait + 3.0
        # Before anybody may start a successor: a lease must not be held by two.
        await self._end(0.0)
        link.close(
            "The engine died while it worked on this; its models go on from their last checkpoints. Try again in a moment."
        )
        log.error("The engine's process died; it is started again in %.1f s.", wait)
        self._starting = asyncio.create_task(self._start(wait))
        await self._starting

    def _wait(self) -> float:
        return float(min(FIRST_WAIT_SECONDS * 2 ** (self._failures - 1), LONGEST_WAIT_SECONDS))

    async def _end(self, patience: float) -> None:
        """Wait for the process to end, and kill it where it does not."""
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(_reap, process, patience)


def _begin(connection: socket.socket) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C is for the server, who tells it to stop.
    return subprocess.Popen(
        [sys.executable, "-m", "hud.platform.serving.worker", str(connection.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[connection.fileno()],
        start_new_session=True,
    )


def _reap(process: subprocess.Popen[bytes], patience: float) -> None:
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
