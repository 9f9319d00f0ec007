"""An engine of one event loop is asked from others: it works on its own, and streams end with their readers."""

import asyncio
import threading
from contextlib import aclosing

import pytest

from hud_platform.serving.owned_engine import OwnedEngine


class LoopEngine:
    """An engine that notes on which event loop it works."""

    up, streams = True, 2

    def __init__(self):
        self.loops = []
        self.closed = threading.Event()

    async def stream(self, model, checkpoint, request):
        self.loops.append(asyncio.get_running_loop())
        try:
            for number in range(request):
                await asyncio.sleep(0)
                yield number
            if model == "broken":
                raise RuntimeError("broken")
        finally:
            self.closed.set()

    async def call(self, model, body, client=None):
        self.loops.append(asyncio.get_running_loop())
        return b"done"


async def elsewhere(work):
    """Return the result of a coroutine function on an event loop of another thread."""
    return await asyncio.to_thread(lambda: asyncio.run(work()))


async def test_streams_and_calls_come_from_the_engines_own_loop():
    engine = LoopEngine()
    owned = OwnedEngine(engine)

    async def work():
        items = [item async for item in owned.stream("m", None, 5)]
        return items, await owned.call("m", None)

    assert await elsewhere(work) == await work() == ([0, 1, 2, 3, 4], b"done")
    assert set(engine.loops) == {asyncio.get_running_loop()}
    assert (owned.up, owned.streams) == (True, 2)


async def test_errors_reach_the_reader():
    owned = OwnedEngine(LoopEngine())

    async def work():
        return [item async for item in owned.stream("broken", None, 2)]

    with pytest.raises(RuntimeError, match="broken"):
        await elsewhere(work)


async def test_a_reader_that_leaves_closes_the_stream():
    engine = LoopEngine()
    owned = OwnedEngine(engine)

    async def work():
        async with aclosing(owned.stream("m", None, 10**9)) as items:
            async for item in items:
                return item

    assert await elsewhere(work) == 0
    assert await asyncio.to_thread(engine.closed.wait, 10)
