"""A Python function as a tool of an environment."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from typing import Any

from hud.environment.processes.worker_threads import in_thread
from hud.environment.tools.arguments import Arguments, annotated, unwrapped
from hud.environment.tools.results import text_block, tool_result
from hud.errors import UsageError, text_of
from hud.foreign_code import is_failure
from hud.trace import ToolResult, ToolSpec, parsed_arguments

MAX_ITEMS = 10_000
"""Maximum number of items of a generator that is a tool's result."""
TOOL_SECONDS = 300.0
"""Default time-out of a tool call, in seconds."""


class Tool:
    """A function, the schema of its arguments, and its time-out."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self.function = function
        self.name = name or _name_of(function)
        self.timeout = timeout
        self.arguments = Arguments(function, self.name)
        self.is_async = inspect.iscoroutinefunction(annotated(function))
        self.spec = ToolSpec(
            name=self.name,
            description=description or self.arguments.description,
            parameters=self.arguments.schema,
        )

    async def call(
        self, arguments: dict[str, Any] | str, timeout: float | None = None
    ) -> ToolResult:
        """Call the function; its failures are error results."""
        own = TOOL_SECONDS if self.timeout is None else self.timeout
        limit = own if timeout is None else min(own, timeout)
        clock = asyncio.timeout(limit)
        try:
            values = self.arguments.validate_call(parse_arguments(arguments, self.name))
            async with clock:
                value = (
                    await self.function(**values)
                    if self.is_async
                    else await in_thread(self.function, values)
                )
                if inspect.isawaitable(value):
                    value = await value
                value = await _collected(value)
            return tool_result(value)
        except UsageError as error:
            return tool_result(ToolResult(content=[text_block(str(error))], is_error=True))
        except BaseException as error:
            if not is_failure(error):
                raise
            if clock.expired() and isinstance(error, TimeoutError):
                return tool_result(ToolResult.of_time_out(self.name, limit))
            message = f"{self.name}: {type(error).__name__}: {text_of(error)}"
            return tool_result(ToolResult(content=[text_block(message)], is_error=True))


async def _collected(value: Any) -> Any:
    """Return the items of a generator or another iterator as a list; other values as they are."""
    if isinstance(value, AsyncIterator):
        items = []
        async for item in value:
            items.append(item)
            if len(items) > MAX_ITEMS:
                break
    elif isinstance(value, Iterator):
        items = await in_thread(lambda: list(islice(value, MAX_ITEMS + 1)), {})
    else:
        return value
    if len(items) > MAX_ITEMS:
        raise ValueError(f"the tool yields more than {MAX_ITEMS:,} items")
    return items


def _name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, of a partial's function, or of a callable object's class."""
    function = unwrapped(function)
    return str(getattr(function, "__name__", type(function).__name__))


def parse_arguments(arguments: dict[str, Any] | str, name: str) -> dict[str, Any]:
    """Return the arguments as an object; a model may have sent JSON text, also twice encoded. Raises `UsageError` for anything else."""
    values = parsed_arguments(arguments)
    if isinstance(values, str):
        raise UsageError(f"{name}: the arguments must be a JSON object, not {values[:80]!r}.")
    return values
