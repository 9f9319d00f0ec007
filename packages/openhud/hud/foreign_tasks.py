"""Containment of exits in asyncio tasks that foreign code starts: `sys.exit()` in one would end the event loop, and with it every run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hud.foreign_code import is_failure

_PACKAGE = __file__.rpartition("foreign_tasks")[0]
_within_run: ContextVar[bool] = ContextVar("within_run", default=False)


@contextmanager
def exits_contained() -> Iterator[None]:
    """Contain exits of the tasks that are started in this context, and in those of its tasks.

    Such a task fails with a `RuntimeError`, which reaches code that awaits it and nothing else. The loop keeps its task
    factory, which leaves other tasks as they are.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop.get_task_factory(), _Factory):
        loop.set_task_factory(_Factory(loop.get_task_factory()))
    token = _within_run.set(True)
    try:
        yield
    finally:
        _within_run.reset(token)


class _Factory:
    """A task factory on top of the loop's own."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        if _within_run.get() and asyncio.iscoroutine(coroutine) and _is_foreign(coroutine):
            coroutine = _Contained(coroutine)
        if self._inner is None:
            return asyncio.Task(coroutine, loop=loop, **options)
        return self._inner(loop, coroutine, **options)


def _is_foreign(coroutine: Any) -> bool:
    """Return True unless the coroutine is this package's, whose tasks handle foreign exits themselves."""
    code = getattr(coroutine, "cr_code", None)
    return code is None or not code.co_filename.startswith(_PACKAGE)


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine whose exits are a `RuntimeError`.

    No `async def` around it: one that is cancelled before its first step would never await the inner coroutine.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def send(self, value: Any) -> Any:
        return self._step(self._inner.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._inner.throw, *error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # Code and frame, for stacks and names of tasks.

    def _step(self, step: Callable[..., Any], *values: Any) -> Any:
        try:
            return step(*values)
        except (SystemExit, KeyboardInterrupt) as error:
            if not is_failure(error):
                raise
            name = type(error).__name__
            raise RuntimeError(f"{name} in a background task: {error}") from error
