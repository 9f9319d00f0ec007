"""A template: an async generator with two yields that is the episode, the grader and the task in one."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from hud.environment.templates.task import Task
from hud.environment.tools.arguments import Arguments
from hud.errors import UsageError

if TYPE_CHECKING:
    from hud.environment.environment import Environment


class Template:
    """A registered template. Calling it returns a `Task`; nothing runs."""

    def __init__(
        self,
        environment: Environment,
        function: Callable[..., AsyncGenerator[Any, Any]],
        *,
        id: str | None = None,
        description: str = "",
        input: Any = None,
        returns: Any = None,
    ) -> None:
        self.environment = environment
        self.function = function
        self.id = id or function.__name__
        if not inspect.isasyncgenfunction(function):
            raise UsageError(
                f"Template {self.id!r} must be an async generator function: `async def` with two yields, first the "
                "prompt, then the reward."
            )
        self.arguments = Arguments(function, f"Template {self.id!r}")
        self._parameters = inspect.signature(function).parameters
        self.description = description or self.arguments.description
        self.input = TypeAdapter(input) if input is not None else None
        self.returns: TypeAdapter[Any] | None = (
            TypeAdapter(returns) if returns is not None else None
        )
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *positional: Any, **args: Any) -> Task:
        """Return the task of this template with these arguments."""
        names = list(self._parameters)
        if len(positional) > len(names):
            raise UsageError(
                f"Template {self.id!r} takes {len(names)} arguments, not {len(positional)}."
            )
        placed = dict(zip(names, positional, strict=False))
        if twice := placed.keys() & args.keys():
            raise UsageError(f"Template {self.id!r} was given {min(twice)!r} twice.")
        values = {**placed, **args}
        self.arguments.validate(values)
        return Task(env=self.environment.name, id=self.id, args=_as_json(values)).bind(
            self.environment
        )

    def task(self, *positional: Any, **args: Any) -> Task:
        """Return the task of this template with these arguments."""
        return self(*positional, **args)

    @property
    def args_schema(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        return self.arguments.schema

    def row(self) -> dict[str, Any]:
        """The template's entry in `tasks.list`."""
        row = {"id": self.id, "description": self.description, "args": self.arguments.schema}
        if self.input is not None:
            row["input"] = self.input.json_schema()
        if self.returns is not None:
            row["returns"] = self.returns.json_schema()
        return row


_ARGUMENTS: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = _ARGUMENTS.dump_python(values, mode="json")
    return plain
