"""Sync functions off the event loop, in daemon threads.

The standard library's executor joins its threads at exit, so a tool that never returns would block the process's exit.
These threads are daemons: an abandoned call keeps its thread, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]
_MOST_IDLE = 64


class _Worker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="hud-tool", daemon=True)
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.awaited: asyncio.Future[Any] | None = None
        """Future of the running call."""
        self.start()

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            work, loop, future = job
            self.awaited = future
            settle: Callable[[asyncio.Future[Any], Any], None] = _resolve
            outcome: Any
            try:
                outcome = work()
            except BaseException as error:
                settle, outcome = _fail, error
            self.awaited = None
            # Idle before the result is set, so that the caller's next call reuses this thread.
            keep = len(_idle) < _MOST_IDLE
            if keep:
                _idle.append(self)
            # With a closed event loop no caller is waiting.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, future, outcome)
            del job, work, loop, future, outcome
            if not keep:
                return


_idle: list[_Worker] = []


def is_abandoned(thread: threading.Thread) -> bool:
    """Return True for a thread that still runs a call for whose result nothing waits."""
    awaited = thread.awaited if isinstance(thread, _Worker) else None
    return awaited is not None and awaited.done()


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        # A future cannot carry StopIteration, and SystemExit would end the event loop.
        carried = (
            error if isinstance(error, Exception) and not isinstance(error, StopIteration) else None
        )
        future.set_exception(carried or RuntimeError(f"{type(error).__name__}: {error}"))


async def in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a sync function in a thread, in a copy of the current context, and return its result."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    worker.jobs.put((lambda: context.run(function, **arguments), loop, future))
    return await future
