"""An event loop in a thread of its own, for libraries that call from synchronous code or from a running loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def wait_for(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop and block until it returns; works in a notebook, too.

    An interrupt of the calling thread cancels the coroutine.
    """
    future = asyncio.run_coroutine_threadsafe(call, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="hud-integrations", daemon=True).start()
    return loop
