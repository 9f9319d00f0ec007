"""Messages, tool calls and tool results.

The shapes are those of the Model Context Protocol (content blocks, tool results) and of chat
completions (messages), as plain data.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hud import exact_json
from hud.trace.ids import new_id


class TextContent(BaseModel):
    """A block of text."""

    type: Literal["text"] = "text"
    text: str


class ImageContent(BaseModel):
    """An image, inline."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["image"] = "image"
    data: str
    """Base64 of the image file's bytes."""
    mime_type: str = Field(alias="mimeType")


ContentBlock = Annotated[TextContent | ImageContent, Field(discriminator="type")]


class Message(BaseModel):
    """One chat message of a prompt."""

    role: Literal["system", "user", "assistant"] = "user"
    content: str | list[ContentBlock]

    @property
    def text(self) -> str:
        """The message's text blocks, joined by newlines."""
        return text_of(self.content)


class ToolSpec(BaseModel):
    """A tool as an agent sees it."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments: always an object schema."""
    native: Literal["bash", "editor", "computer"] | None = None
    """Kind of a provider's native tool; a dialect without it declares an ordinary function."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of a native tool; a computer's `width`, `height` and `environment`."""
    delegated: bool = False
    """True for a subagent: the caller's process plays it, with its own model."""

    def function(self) -> dict[str, Any]:
        """Return the tool as a chat-completions function declaration."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }


class ToolCall(BaseModel):
    """A model's tool call."""

    id: str = Field(default_factory=lambda: f"call_{new_id()[:8]}")
    """Id of the call, unique in its turn."""
    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)
    """Parsed arguments, or the raw string if it is not a JSON object."""

    @property
    def arguments_text(self) -> str:
        """The arguments as JSON text."""
        if isinstance(self.arguments, str):
            return self.arguments
        return exact_json.dumps(self.arguments).decode()

    def message(self) -> dict[str, Any]:
        """Return one entry of an assistant message's `tool_calls`."""
        return call_message(self.id, self.name, self.arguments_text)


def parsed_arguments(value: Any) -> dict[str, Any] | str:
    """Return a call's arguments as an object, or as text if they are no JSON object.

    Servers send JSON text, JSON text encoded a second time, an object, and for no arguments an empty text (also encoded) or null.
    """
    if value is None or isinstance(value, dict):
        return value or {}
    if not isinstance(value, str):
        return exact_json.dumps(value).decode()
    try:
        parsed = exact_json.loads(value) if value.strip() else None
    except exact_json.JSONDecodeError:
        return value
    if isinstance(parsed, str):
        parsed = parsed_arguments(parsed)
    return value if parsed is not None and not isinstance(parsed, dict) else parsed or {}


def call_message(identifier: str, name: str, arguments: str) -> dict[str, Any]:
    """Return one entry of an assistant message's `tool_calls`; `arguments` is JSON."""
    function = {"name": name, "arguments": arguments}
    return {"id": identifier, "type": "function", "function": function}


_NO_ANSWER = "no answer within"


class ToolResult(BaseModel):
    """Result of a tool call (MCP's `CallToolResult`)."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    content: list[ContentBlock] = Field(default_factory=list)
    is_error: bool = Field(default=False, alias="isError")
    structured_content: dict[str, Any] | None = Field(default=None, alias="structuredContent")

    @property
    def text(self) -> str:
        """The result's text blocks, joined by newlines."""
        return text_of(self.content)

    @classmethod
    def of_text(cls, text: str, *, is_error: bool = False) -> ToolResult:
        """A result of one text block."""
        return cls(content=[TextContent(text=text)], is_error=is_error)

    @classmethod
    def of_time_out(cls, name: str, seconds: float) -> ToolResult:
        """An error result of a call without a result after `seconds`."""
        return cls.of_text(f"{name}: {_NO_ANSWER} {seconds:g} s.", is_error=True)

    @property
    def timed_out(self) -> bool:
        """True for the error result of a call that was ended by its time-out."""
        return self.is_error and _NO_ANSWER in self.text


def text_of(content: str | list[TextContent | ImageContent]) -> str:
    """Return the text of message or result content, blocks joined by newlines."""
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content if isinstance(block, TextContent))
