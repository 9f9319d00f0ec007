"""Waiting for what another thread or process does, and having it take its time."""

import asyncio
import time


async def until(condition):
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")


def slowed(sampler, seconds=0.01):
    """Let each of a sampler's decode steps take its time."""
    decode = sampler._decode

    def slow():
        time.sleep(seconds)
        decode()

    sampler._decode = slow
