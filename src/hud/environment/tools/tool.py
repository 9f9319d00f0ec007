"""A Python function as a tool of an environment."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from hud import exact_json
from hud.environment.processes.worker_threads import in_thread
from hud.environment.tools.arguments import Arguments, annotated, unwrapped
from hud.environment.tools.results import text_block, tool_result
from hud.errors import UsageError
from hud.foreign_code import is_failure
from hud.trace import ToolResult, ToolSpec

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
            values = self.arguments.validate(parse_arguments(arguments, self.name))
            async with clock:
                value = (
                    await self.function(**values)
                    if self.is_async
                    else await in_thread(self.function, values)
                )
                if inspect.isawaitable(value):
                    value = await value
            return tool_result(value)
        except UsageError as error:
            return tool_result(ToolResult(content=[text_block(str(error))], is_error=True))
        except BaseException as error:
            if not is_failure(error):
                raise
            if clock.expired() and isinstance(error, TimeoutError):
                return tool_result(ToolResult.of_time_out(self.name, limit))
            message = f"{self.name}: {type(error).__name__}: {error}"
            return tool_result(ToolResult(content=[text_block(message)], is_error=True))


def _name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, of a partial's function, or of a callable object's class."""
    function = unwrapped(function)
    return str(getattr(function, "__name__", type(function).__name__))


def parse_arguments(arguments: dict[str, Any] | str, name: str) -> dict[str, Any]:
    """Return the arguments as an object; a model may have sent a JSON string. Raises `UsageError` for anything else."""
    if isinstance(arguments, dict):
        return arguments
    try:
        values = exact_json.loads(arguments or "{}")
    except exact_json.JSONDecodeError:
        values = None
    if not isinstance(values, dict):
        raise UsageError(f"{name}: the arguments must be a JSON object, not {arguments[:80]!r}.")
    return values
