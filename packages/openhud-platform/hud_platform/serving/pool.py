"""Pool of engine processes, one for each model, so that a crash affects one model. Adapters of one base share a process.
A model keeps its process from its first request on. At the maximum number of processes, the one that has been idle
longest is ended; if none is idle, models share processes. The pool assigns engines to models and ends idle ones;
`remote` starts and restarts a process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hud.client.contributor import UNNAMED, Contributor
from hud_platform.models.records import ModelRecord
from hud_platform.process.config import PlatformConfig
from hud_platform.serving.calls import ChangeServers, ForgetModel
from hud_platform.serving.remote import WorkerEngine
from hud_platform.serving.token_engine import (
    EngineDownError,
    TokenDelta,
    TokenEnd,
    TokenEngine,
    TokenRequest,
)

IDLE_SECONDS = 1800.0
"""Idle time after which a process is ended; the next request starts one again."""
LOOK_SECONDS = 60.0
"""Interval between two searches for idle processes."""


def _base_of(model: ModelRecord) -> tuple[Path, str]:
    return model.folder, model.config.dtype


class EnginePool(TokenEngine):
    """`TokenEngine` over a process for each model. Belongs to one event loop."""

    def __init__(self, config: PlatformConfig) -> None:
        self.config = config
        self._of: dict[str, WorkerEngine] = {}
        """Engine of each model with a request so far, by model id."""
        self._of_base: dict[tuple[Path, str], WorkerEngine] = {}
        """Engine of each base with adapters, shared by the forks of the base."""
        self._spare: WorkerEngine | None = None
        """Engine started ahead of the first request."""
        self._ending: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._stopped = False

    def engine_of(self, model: ModelRecord) -> WorkerEngine:
        """Return a model's engine, assigning one if necessary. Raises `EngineDownError` during shutdown."""
        engine = self._of.get(model.id)
        if engine is None:
            if self._stopped:
                raise EngineDownError("The server is stopping.")
            engine = self._of[model.id] = self._beside(model) or self._chosen()
            if model.config.training == "lora":
                self._of_base[_base_of(model)] = engine
        return engine

    def _beside(self, model: ModelRecord) -> WorkerEngine | None:
        """Return the engine of other forks of a model's base, if the model may share it."""
        if model.config.training != "lora":
            return None
        engine = self._of_base.get(_base_of(model))
        return engine if engine in self._of.values() else None

    def stream(
        self, model: ModelRecord, checkpoint: str | None, request: TokenRequest
    ) -> AsyncGenerator[TokenDelta | TokenEnd, None]:
        return self.engine_of(model).stream(model, checkpoint, request)

    async def call(
        self, model: ModelRecord, body: BaseModel, client: Contributor = UNNAMED
    ) -> bytes:
        """Return the result of a call as JSON. `ForgetModel` also ends the process of a model that shares it with no other."""
        if isinstance(body, ForgetModel | ChangeServers):
            there = self._of.get(model.id)
            if there is None:
                return b"null"  # Nothing of the model is loaded.
            engine = there
            if isinstance(body, ForgetModel):
                del self._of[model.id]
        else:
            engine = self.engine_of(model)
        answer = await engine.call(model, body, client)
        if isinstance(body, ForgetModel) and engine not in self._of.values():
            await engine.stop()
        return answer

    async def status(self) -> dict[str, Any]:
        statuses = await asyncio.gather(*(engine.status() for engine in self._engines()))
        return {
            "streams": self.streams,
            "models": [model for status in statuses for model in status["models"]],
            "pids": [status["pid"] for status in statuses if status["pid"] is not None],
        }

    @property
    def up(self) -> bool:
        """False if processes are needed and none is running."""
        engines = self._engines()
        return not engines or any(engine.up for engine in engines)

    @property
    def streams(self) -> int:
        return sum(engine.streams for engine in self._engines())

    async def start(self) -> None:
        if not self._engines():
            self._spare = WorkerEngine(self.config)
            await self._spare.start()

    async def stop(self) -> None:
        """Stop every process after it has released its leases."""
        self._stopped = True
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        await asyncio.gather(*(engine.stop() for engine in self._engines()), *self._ending)
        self._spare = None

    def _engines(self) -> list[WorkerEngine]:
        """Return every engine once."""
        engines = dict.fromkeys(self._of.values())
        if self._spare is not None:
            engines[self._spare] = None
        return list(engines)

    def _chosen(self) -> WorkerEngine:
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        if self._spare is not None:
            engine, self._spare = self._spare, None
            return engine
        engines = self._engines()
        if len(engines) >= self.config.engines:
            idle = [engine for engine in engines if engine.idle_since is not None]
            if not idle:
                return min(engines, key=lambda engine: list(self._of.values()).count(engine))
            self._end(min(idle, key=lambda engine: engine.idle_since or 0.0))
        return WorkerEngine(self.config, after=self._ending)

    def _end(self, engine: WorkerEngine) -> None:
        """End an engine; its models are assigned another one at their next request."""
        self._of = {model: placed for model, placed in self._of.items() if placed is not engine}
        task = asyncio.create_task(engine.stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _look(self) -> None:
        """End idle processes periodically."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            late = time.monotonic() - IDLE_SECONDS
            for engine in self._engines():
                since = engine.idle_since
                if since is not None and since < late and engine is not self._spare:
                    self._end(engine)
