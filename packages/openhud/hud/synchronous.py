"""`hud.run`: asynchronous calls from a synchronous script, all on one event loop."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import threading
from collections.abc import Awaitable
from typing import Any, TypeVar

from hud.errors import UsageError

T = TypeVar("T")
_main: asyncio.Runner | None = None


def run(call: Awaitable[T]) -> T:
    """Run an asynchronous call to its end and return its result: `job = hud.run(tasks.run(agent, group=8))`.

    All calls of a script share one event loop, so connections are reused. Ctrl-C cancels the call.
    Raises `UsageError` if an event loop is running already (an async function, a notebook): use `await` there.
    """
    if not inspect.isawaitable(call):
        raise UsageError(
            f"hud.run takes an asynchronous call, such as hud.run(tasks.run(agent)), not {type(call).__name__!r}."
        )
    if _is_running():
        if inspect.iscoroutine(call):
            call.close()
        raise UsageError(
            "hud.run is for scripts, and an event loop is running here: in a notebook or an async function, write "
            "`await` in its place, as in `job = await tasks.run(agent)`."
        )
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(_wait(call))
    return _runner().run(_wait(call))


def _is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _wait(call: Awaitable[T]) -> T:
    return await call


def _runner() -> asyncio.Runner:
    global _main
    if _main is None:
        _main = asyncio.Runner()
        atexit.register(_end, _main.get_loop())
    return _main


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel remaining tasks. Threads have ended by then, so the loop's executor is not waited for."""
    loop.run_until_complete(_cancel(asyncio.all_tasks(loop)))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
