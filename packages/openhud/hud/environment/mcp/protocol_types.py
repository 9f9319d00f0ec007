"""Conversion of an environment's tools, prompts and results to types of the Model Context Protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mcp import types

from hud.trace import ContentBlock, ImageContent, Message, TextContent, ToolResult, ToolSpec


def tool_of(spec: ToolSpec) -> types.Tool:
    return types.Tool(
        name=spec.name, description=spec.description or None, input_schema=spec.parameters
    )


def call_result(result: ToolResult) -> types.CallToolResult:
    return types.CallToolResult(
        content=[_block(block) for block in result.content],
        structured_content=result.structured_content,
        is_error=result.is_error,
    )


def refused(problem: str) -> types.CallToolResult:
    """Return the result of a failed call."""
    return call_result(ToolResult.of_text(problem, is_error=True))


def prompt_of(row: Mapping[str, Any]) -> types.Prompt:
    """Return a template as a prompt: getting the prompt starts the task."""
    schema = _schema(row)
    required = schema.get("required", [])
    arguments = [
        types.PromptArgument(
            name=name, description=argument_schema.get("description"), required=name in required
        )
        for name, argument_schema in schema.get("properties", {}).items()
    ]
    return types.Prompt(
        name=str(row["id"]), description=row.get("description") or None, arguments=arguments
    )


def typed(row: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Convert a prompt's arguments, which are text, to the template's types."""
    properties = _schema(row).get("properties", {})
    return {name: _value(properties.get(name, {}), text) for name, text in texts.items()}


def prompted(prompt: str | Sequence[Message]) -> types.GetPromptResult:
    if isinstance(prompt, str):
        prompt = [Message(content=prompt)]
    messages = [
        types.PromptMessage(
            # Prompts of the protocol have no system messages.
            role="assistant" if message.role == "assistant" else "user",
            content=_block(block),
        )
        for message in prompt
        for block in _blocks(message)
    ]
    return types.GetPromptResult(messages=messages)


def _schema(row: Mapping[str, Any]) -> dict[str, Any]:
    schema = row.get("args")
    return schema if isinstance(schema, dict) else {}


def _value(schema: Mapping[str, Any], text: str) -> Any:
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _blocks(message: Message) -> list[ContentBlock]:
    if isinstance(message.content, str):
        return [TextContent(text=message.content)]
    return list(message.content)


def _block(block: ContentBlock) -> types.TextContent | types.ImageContent:
    if isinstance(block, ImageContent):
        return types.ImageContent(type="image", data=block.data, mime_type=block.mime_type)
    return types.TextContent(type="text", text=block.text)
