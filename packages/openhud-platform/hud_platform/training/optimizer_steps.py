"""`StepsInFlight`: optimizer steps that this process has accepted and not completed yet.
A training script that is killed during a step and restarted computes the remaining steps from the checkpoint list.
The step continues without the script, so reads of the list wait for it: else a batch would be applied twice.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from contextlib import suppress
from typing import TypeVar

LONGEST_WAIT_SECONDS = 300.0
"""Time-out of a read, in seconds: afterwards the list is returned without the step in flight."""

T = TypeVar("T")


class StepsInFlight:
    """Optimizer steps in flight. Safe to use from several event loops."""

    def __init__(self) -> None:
        self._taking: dict[str, set[concurrent.futures.Future[None]]] = {}

    async def take(self, model_id: str, step: Coroutine[object, object, T]) -> T:
        """Return the result of `step`, which is not cancelled with its caller."""
        ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        ended.set_running_or_notify_cancel()  # A cancelled reader must not cancel it for other readers.
        taking = self._taking.setdefault(model_id, set())
        taking.add(ended)

        def end(task: asyncio.Task[T]) -> None:
            taking.discard(ended)
            ended.set_result(None)
            if not task.cancelled():
                task.exception()  # Retrieved here: the caller may have been cancelled.

        task = asyncio.ensure_future(step)
        task.add_done_callback(end)
        return await asyncio.shield(task)

    async def settled(self, model_id: str) -> None:
        """Wait until the steps that are in flight now have completed."""
        before = [asyncio.wrap_future(step) for step in tuple(self._taking.get(model_id, ()))]
        if before:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*before), LONGEST_WAIT_SECONDS)
