"""Event loop of a process that was forked to serve one stream, and may never have to wait for anything else.

It is made before the fork, opens no descriptor until it must wait, and runs what is ready as a plain function call. What
asyncio needs to wait for several things (a selector, a self-pipe, readers) takes a tenth of the processor time of a short
rollout, since a forked process copies each page of memory that it touches.
"""

from __future__ import annotations

import _thread
import asyncio
import selectors
import sys
from collections import deque
from collections.abc import Coroutine
from typing import Any

_MOST_CALLBACKS = 64
"""Callbacks that run without polling, if there are always more."""


class LazyLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, complete from `open` on; before, `run_at_once` runs what has nothing to wait for."""

    # asyncio's own, which it does not declare.
    _ready: deque[Any]
    _scheduled: list[asyncio.TimerHandle]
    _selector: selectors.BaseSelector
    _asyncgen_firstiter_hook: Any
    _asyncgen_finalizer_hook: Any

    def __init__(self) -> None:
        self._thread_id: int | None = None
        self._ssock: Any = None
        self._csock: Any = None
        self._tasks = 0
        """Tasks in progress."""
        self._timer_cancelled_count = 0
        # Other selectors have a descriptor, which all forked processes would share.
        super().__init__(selectors.PollSelector())
        self._descriptors = self._selector.get_map()

    def enter(self) -> None:
        """Make this the thread's running loop, as `run_forever` does."""
        self._thread_id = _thread.get_ident()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)

    def leave(self) -> None:
        """End what `enter` began."""
        self._thread_id = None
        asyncio._set_running_loop(None)
        sys.set_asyncgen_hooks(None, None)

    def run_at_once(self, coro: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Run a coroutine as a task, as far as it has nothing to wait for; returns the task if it is not done."""
        task = asyncio.Task(coro, loop=self)
        self._run_ready()
        if task.done():
            return None
        self._count(task)
        return task

    def _run_ready(self) -> None:
        """Run what is ready, and what becomes ready by it, up to a number of callbacks."""
        for _ in range(_MOST_CALLBACKS):
            if not self._ready:
                break
            handle = self._ready.popleft()
            if not handle._cancelled:
                handle._run()
        if self._scheduled and all(timer.cancelled() for timer in self._scheduled):
            self._scheduled.clear()
            self._timer_cancelled_count = 0

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to run and nothing to wait for: no task, timer, descriptor or thread."""
        busy = self._tasks or self._ready or self._scheduled or self._descriptors
        return not busy and not _thread._count()

    def open(self) -> None:
        """Make the self-pipe, before anything is waited for."""
        if self._csock is None:
            super()._make_self_pipe()  # type: ignore[misc]

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        self._count(task)
        return task

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        self.open()
        super().add_signal_handler(sig, callback, *args)

    def _count(self, task: asyncio.Task[Any]) -> None:
        self._tasks += 1
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        del task
        self._tasks -= 1

    def _make_self_pipe(self) -> None:
        """Make none yet: `open` does."""

    def _close_self_pipe(self) -> None:
        if self._csock is not None:
            super()._close_self_pipe()  # type: ignore[misc]
