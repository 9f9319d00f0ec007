"""A template: an async generator with two yields that is the episode, the grader and the task in one."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter

from hud.environment.arguments import Arguments
from hud.environment.task import Task
from hud.errors import EnvironmentFault, UsageError
from hud.trace import ImageContent, Message, TextContent

if TYPE_CHECKING:
    from hud.environment.environment import Environment


class Template:
    """A registered template. Calling it makes a `Task`; nothing runs."""

    def __init__(
        self,
        environment: Environment,
        function: Callable[..., AsyncGenerator[Any, Any]],
        *,
        id: str | None,
        description: str,
        input: Any,
        returns: Any,
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
        self.description = description or self.arguments.description
        self.input = TypeAdapter(input) if input is not None else None
        self.returns: TypeAdapter[Any] | None = (
            TypeAdapter(returns) if returns is not None else None
        )
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *positional: Any, **args: Any) -> Task:
        """Return the task of this template with these arguments."""
        names = list(inspect.signature(self.function).parameters)
        if len(positional) > len(names):
            raise UsageError(
                f"Template {self.id!r} takes {len(names)} arguments, not {len(positional)}."
            )
        placed = dict(zip(names, positional, strict=False))
        if twice := placed.keys() & args.keys():
            raise UsageError(f"Template {self.id!r} was given {min(twice)!r} twice.")
        given = {**placed, **args}
        self.arguments.validate(given)
        return Task(env=self.environment.name, id=self.id, args=_as_json(given)).bind(
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
        """The template's row in `tasks.list`."""
        row = {"id": self.id, "description": self.description, "args": self.arguments.schema}
        if self.input is not None:
            row["input"] = self.input.json_schema()
        if self.returns is not None:
            row["returns"] = self.returns.json_schema()
        return row


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = TypeAdapter(dict[str, Any]).dump_python(values, mode="json")
    return plain


def as_prompt(value: Any, task_id: str) -> str | list[Message]:
    """Return what a template's first yield gave as a prompt: text, or chat messages."""
    if isinstance(value, str):
        return value
    if isinstance(value, Message | dict | BaseModel):
        value = [value]
    if not isinstance(value, list | tuple) or not value:
        raise EnvironmentFault(
            f"Template {task_id!r} yielded {type(value).__name__} as its prompt; yield text, or a list of chat messages."
        )
    return [_message(item, task_id) for item in value]


def _message(item: Any, task_id: str) -> Message:
    if isinstance(item, Message):
        return item
    if isinstance(item, str):
        return Message(content=item)
    if isinstance(item, BaseModel):
        item = item.model_dump()
    try:
        role = item.get("role", "user")
        content = item["content"]
        blocks = content if isinstance(content, str) else _blocks(content)
        return Message(role=typing.cast(Any, role), content=blocks)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise EnvironmentFault(
            f"Template {task_id!r} yielded a prompt message that is not {{role, content}}: {item!r:.100} ({error})."
        ) from None


def _blocks(content: Any) -> list[TextContent | ImageContent]:
    """Return MCP or chat-completions content parts as content blocks."""
    parts = content if isinstance(content, list | tuple) else [content]
    blocks: list[TextContent | ImageContent] = []
    for part in parts:
        plain = part.model_dump(by_alias=True) if isinstance(part, BaseModel) else part
        if isinstance(plain, str):
            blocks.append(TextContent(text=plain))
        elif plain.get("type") == "text":
            blocks.append(TextContent(text=plain["text"]))
        elif plain.get("type") == "image_url":
            blocks.append(_inline_image(plain["image_url"]["url"]))
        else:
            blocks.append(ImageContent.model_validate(plain))
    return blocks


def _inline_image(url: str) -> ImageContent:
    header, _, data = url.partition(",")
    if not (header.startswith("data:") and header.endswith(";base64")):
        # Nothing is fetched on an environment's word: whoever plays may be inside another network.
        raise ValueError(f"the image {url[:60]!r} is not inline; give data:<type>;base64,<data>")
    mime = header.removeprefix("data:").removesuffix(";base64")
    return ImageContent(data=data, mime_type=mime)
