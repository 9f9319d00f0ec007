"""Merging of several streams of events, in the order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from hud.inference.dialects.events import Event


async def merged(
    streams: Sequence[AsyncGenerator[list[Event], None]],
) -> AsyncGenerator[list[Event], None]:
    """Yield the items of all streams. The first error ends all; closing this generator closes them."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for events in only:
                yield events
        return
    queue: asyncio.Queue[list[Event] | Exception | None] = asyncio.Queue(maxsize=4 * len(streams))
    tasks = [asyncio.create_task(_pour(stream, queue)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pour(
    stream: AsyncGenerator[list[Event], None], queue: asyncio.Queue[list[Event] | Exception | None]
) -> None:
    try:
        async with aclosing(stream):
            async for events in stream:
                await queue.put(events)
    except Exception as error:  # Raised again by the reader of the queue.
        await queue.put(error)
    else:
        await queue.put(None)
