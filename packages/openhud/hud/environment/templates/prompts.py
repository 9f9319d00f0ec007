"""Prompts: the forms of a template's first yield, as text or as chat messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import BaseModel

from hud.errors import EnvironmentFault
from hud.trace import ImageContent, Message, TextContent


@dataclass(frozen=True)
class StartFrame:
    """Result of a template's setup half: the prompt, connection parameters and state."""

    prompt: str | list[Message]
    bindings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Connection parameters of this task, such as a token, by capability name."""
    state: Any = None
    """The environment's state after the setup half, with an observe hook."""


def start_frame(value: Any, task_id: str) -> StartFrame:
    """Parse a template's first yield: a prompt, or `{"prompt": ..., "bindings": {name: {...}}}`.

    Raises `EnvironmentFault` for other values.
    """
    if not isinstance(value, dict) or "prompt" not in value:
        return StartFrame(_prompt(value, task_id))
    bindings = value.get("bindings") or {}
    if not isinstance(bindings, dict) or not all(
        isinstance(binding, dict) for binding in bindings.values()
    ):
        raise EnvironmentFault(
            f"Template {task_id!r} yielded bindings that are not {{capability: {{...}}}}: {bindings!r:.100}."
        )
    return StartFrame(_prompt(value["prompt"], task_id), bindings)


def _prompt(value: Any, task_id: str) -> str | list[Message]:
    """Parse a prompt: text, or chat messages."""
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
        return item.model_copy(deep=True)  # The agent may change it.
    if isinstance(item, str):
        return Message(content=item)
    if isinstance(item, BaseModel):
        item = item.model_dump()
    try:
        role = item.get("role", "user")
        content = item["content"]
        blocks = content if isinstance(content, str) else _blocks(content)
        return Message(role=cast(Any, role), content=blocks)
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
        # URLs are not fetched: the agent's process may be in a different, private network.
        raise ValueError(f"the image {url[:60]!r} is not inline; give data:<type>;base64,<data>")
    mime = header.removeprefix("data:").removesuffix(";base64")
    return ImageContent(data=data, mime_type=mime)
