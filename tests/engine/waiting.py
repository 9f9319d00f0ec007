"""Waiting for what another thread or process does."""

import asyncio


async def until(condition):
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")
