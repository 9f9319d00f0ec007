"""Engine that belongs to one event loop, usable from any: its work is done on its own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from pydantic import BaseModel

from hud.client.contributor import UNNAMED, Contributor
from hud_platform.models.records import ModelRecord
from hud_platform.serving.token_engine import TokenDelta, TokenEnd, TokenEngine, TokenRequest

T = TypeVar("T")
_Item = TokenDelta | TokenEnd


class OwnedEngine(TokenEngine):
    """An engine of the running event loop."""

    def __init__(self, engine: TokenEngine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    def stream(
        self, model: ModelRecord, checkpoint: str | None, request: TokenRequest
    ) -> AsyncGenerator[_Item, None]:
        items = self._engine.stream(model, checkpoint, request)
        return items if asyncio.get_running_loop() is self._loop else self._brought(items)

    async def call(
        self, model: ModelRecord, body: BaseModel, client: Contributor = UNNAMED
    ) -> bytes:
        return await self._there(self._engine.call(model, body, client))

    async def status(self) -> dict[str, Any]:
        return await self._there(self._engine.status())

    @property
    def up(self) -> bool:
        return self._engine.up

    @property
    def streams(self) -> int:
        return self._engine.streams

    async def start(self) -> None:
        await self._there(self._engine.start())

    async def stop(self) -> None:
        await self._there(self._engine.stop())

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work on the engine's loop."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _brought(self, items: AsyncGenerator[_Item, None]) -> AsyncGenerator[_Item, None]:
        """Yield the items of a stream of the engine's loop. Closing it closes the stream."""
        here = asyncio.get_running_loop()
        arrived: asyncio.Queue[_Item | Exception | None] = asyncio.Queue()

        def put(item: _Item | Exception | None) -> None:
            with suppress(RuntimeError):  # The caller's loop has ended.
                here.call_soon_threadsafe(arrived.put_nowait, item)

        async def forward() -> None:
            try:
                async with aclosing(items):
                    async for item in items:
                        put(item)
            except Exception as error:
                put(error)
            else:
                put(None)

        forwarding = asyncio.run_coroutine_threadsafe(forward(), self._loop)
        try:
            while (item := await arrived.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            forwarding.cancel()
