"""`StepsInFlight`: optimizer steps that this process has accepted and not answered yet.

A script that is killed during a step and started again counts the steps that are left. The step goes on without
it, so reads of the checkpoint list wait for it: else the same batch would be applied twice.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from contextlib import suppress
from typing import TypeVar

LONGEST_WAIT_SECONDS = 300.0
"""After this long a list is returned without the step that is being taken."""

T = TypeVar("T")


class StepsInFlight:
    """Used from several event loops."""

    def __init__(self) -> None:
        self._taking: dict[str, set[concurrent.futures.Future[None]]] = {}

    async def take(self, model_id: str, step: Coroutine[object, object, T]) -> T:
        """Return what `step` returns. It is not cancelled with its caller."""
        ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        ended.set_running_or_notify_cancel()  # A reader that goes away must not cancel it for the others.
        taking = self._taking.setdefault(model_id, set())
        taking.add(ended)

        def end(task: asyncio.Task[T]) -> None:
            taking.discard(ended)
            ended.set_result(None)
            if not task.cancelled():
                task.exception()  # Retrieved: its caller may be gone.

        task = asyncio.ensure_future(step)
        task.add_done_callback(end)
        return await asyncio.shield(task)

    async def settled(self, model_id: str) -> None:
        """Wait until the steps that were accepted before now have been answered."""
        before = [asyncio.wrap_future(one) for one in tuple(self._taking.get(model_id, ()))]
        if before:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*before), LONGEST_WAIT_SECONDS)
