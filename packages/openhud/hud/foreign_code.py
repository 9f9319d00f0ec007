"""Exceptions of foreign code (templates, tools, hooks, graders, agents), and those that only pass through it."""

from __future__ import annotations

import asyncio
import dis
import signal
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType

_RAISE = dis.opmap["RAISE_VARARGS"]


def is_failure(error: BaseException) -> bool:
    """True for an exception of the foreign code itself: it fails its run, and nothing else.

    False for cancellation of the current asyncio task, Ctrl-C and other signals, and the close of a suspended
    coroutine. `sys.exit()`, a `CancelledError` of another task, and a `BaseExceptionGroup` are failures.
    """
    if isinstance(error, Exception):
        return True
    if isinstance(error, BaseExceptionGroup):
        return all(is_failure(inner) for inner in error.exceptions)
    if isinstance(error, asyncio.CancelledError):
        return not _is_cancelled()
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return _is_raised(error.__traceback__) and not _passes_handler(error.__traceback__)
    return not _passes_handler(error.__traceback__)


def text_of(value: object, form: Callable[[object], str] = repr) -> str:
    """Return a value's text by `form`, or its class and identity where that fails: for a class that permits none, or a huge integer."""
    try:
        return form(value)
    except Exception:
        return f"{type(value).__name__}@{id(value)}"


def withdraw_cancellation() -> None:
    """Withdraw the cancellation of the current asyncio task, which foreign code requested."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _is_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # No event loop is running: nothing can be cancelled.
        return False
    return task is None or task.cancelling() > 0


def _is_raised(trace: TracebackType | None) -> bool:
    """True if the innermost frame executed a `raise`; signals and `close()` interrupt other instructions."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


def _passes_handler(trace: TracebackType | None) -> bool:
    """True if a signal handler written in Python raised it."""
    frames: list[FrameType] = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    codes = {frame.f_code for frame in frames}
    return not codes.isdisjoint(
        code for number in signal.valid_signals() if (code := _handler_code(number)) is not None
    )


def _handler_code(number: int) -> CodeType | None:
    handler = signal.getsignal(number)
    handler = getattr(handler, "func", handler)  # asyncio.run installs a partial.
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return code if isinstance(code, CodeType) else None
