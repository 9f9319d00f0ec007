"""One update of the weights, taken exactly once, also where whoever trains dies in the middle of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hud.errors import ConflictError, PlatformError

ATTEMPTS = 8
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 15.0
_PASSING = (502, 503, 504)

Passed = TypeVar("Passed")
Applied = TypeVar("Applied")


async def update(
    forward_backward: Callable[[], Awaitable[Passed]],
    optim_step: Callable[[], Awaitable[Applied]],
) -> tuple[Passed, Applied]:
    """Accumulate a whole batch and apply it; returns what both answered.

    Both are repeated where the platform is away for a while, so each must carry an idempotency key. A gradient that
    died with its engine is missed by the platform, which says so once (`ConflictError`); the batch is then sent again.
    """
    passed: Passed | None = None
    missed = False
    wait = FIRST_WAIT_SECONDS
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if passed is None:
                passed = await forward_backward()
            return passed, await optim_step()
        except ConflictError:
            if missed or attempt == ATTEMPTS:
                raise  # It is said again: something else is in the way.
            missed, passed = True, None
        except PlatformError as error:
            if error.status not in _PASSING or attempt == ATTEMPTS:
                raise
            missed = False
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
    raise AssertionError("unreachable")
