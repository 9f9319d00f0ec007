"""`instrument`: a function whose calls are recorded in the trace of the run that they happen in.

`instrumented` sets the recorder; outside of it a decorated function is only called.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast, overload

from hud.foreign_code import text_of
from hud.trace.recorded_time import now
from hud.trace.steps import Step

Function = TypeVar("Function", bound=Callable[..., Any])

_record: ContextVar[Callable[[Step], Step] | None] = ContextVar("hud_instrument", default=None)
_SHOWN = 2000
"""Characters recorded of an argument or a result."""


class instrumented:  # noqa: N801 - used as a function; a class, as every rollout enters it
    """Scope within which calls of instrumented functions are passed to `record`."""

    __slots__ = ("_record", "_token")

    def __init__(self, record: Callable[[Step], Step]) -> None:
        self._record = record

    def __enter__(self) -> None:
        self._token = _record.set(self._record)

    def __exit__(self, *_: object) -> None:
        _record.reset(self._token)


@overload
def instrument(function: Function, /) -> Function: ...
@overload
def instrument(
    function: None = None,
    /,
    *,
    name: str | None = None,
    record_args: bool = True,
    record_result: bool = True,
) -> Callable[[Function], Function]: ...
def instrument(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    record_args: bool = True,
    record_result: bool = True,
) -> Any:
    """Record every call of a sync or async function: its name, arguments, result or exception, and time."""

    def decorate(function: Function) -> Function:
        called = name or function.__qualname__

        @contextmanager
        def recorded(*arguments: Any) -> Iterator[dict[str, str]]:
            """Record the call made within the context; its result is stored in the yielded value."""
            began = now()
            outcome: dict[str, str] = {}
            try:
                yield outcome
            except Exception as error:
                outcome["exception"] = _shown(error)
                raise
            finally:
                record = _record.get()
                if record is not None and outcome:
                    span: dict[str, Any] = {"name": called}
                    if record_args:
                        span["arguments"] = _arguments(function, *arguments)
                    if record_result or "exception" in outcome:
                        span |= outcome
                    record(Step(started_at=began, extra={"span": span}))

        @functools.wraps(function)
        def sync_call(*args: Any, **kwargs: Any) -> Any:
            with recorded(args, kwargs) as outcome:
                result = function(*args, **kwargs)
                outcome["result"] = _shown(result)
            return result

        @functools.wraps(function)
        async def async_call(*args: Any, **kwargs: Any) -> Any:
            with recorded(args, kwargs) as outcome:
                result = await function(*args, **kwargs)
                outcome["result"] = _shown(result)
            return result

        chosen = async_call if inspect.iscoroutinefunction(function) else sync_call
        return cast(Function, chosen)

    return decorate if function is None else decorate(function)


def _arguments(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, str]:
    bound = inspect.signature(function).bind_partial(*args, **kwargs)
    return {name: _shown(value) for name, value in bound.arguments.items()}


def _shown(value: Any) -> str:
    text = text_of(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
