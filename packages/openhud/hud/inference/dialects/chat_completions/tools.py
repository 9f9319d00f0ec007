"""Tools, tool choice and response format of OpenAI's dialects, read and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hud.inference.dialects.conversation_parts import checked_choice, tool_spec
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest, OutputFormat, ToolChoice
from hud.trace import ToolSpec

LONGEST_NAME = 64


def write_tools(request: GenerationRequest, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a chat completion that declare tools; `names` maps our names to those on the wire."""
    if not request.tools:
        return {}
    fields: dict[str, Any] = {
        "tools": [
            {
                "type": "function",
                "function": {**tool.function(), "name": names.get(tool.name, tool.name)},
            }
            for tool in request.tools
        ]
    }
    choice = request.tool_choice
    if len(choice.names) == 1:
        name = names.get(choice.names[0], choice.names[0])
        fields["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif choice.mode != "auto":
        fields["tool_choice"] = choice.mode
    if not request.parallel_calls:
        fields["parallel_tool_calls"] = False
    return fields


def write_format(format: OutputFormat | None) -> dict[str, Any] | None:
    """Return the `response_format` of a chat completion."""
    if format is None:
        return None
    if format.schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": format.name, "schema": format.schema}}


def read_tools(body: Fields) -> list[ToolSpec]:
    """Return the tools of a chat completion."""
    tools = []
    for tool in body.objects("tools"):
        function = tool.inner("function")
        if tool.text("type") not in (None, "function") or function is None:
            raise tool.unsupported("tools", "are not supported here, only functions")
        tools.append(tool_spec(function, function.object("parameters")))
    return tools


def read_tool_choice(body: Fields, tools: list[ToolSpec]) -> ToolChoice:
    """Return `tool_choice` of chat completions or responses."""
    choice = body.get("tool_choice")
    if choice is None or choice == "auto":
        return ToolChoice()
    if choice == "none":
        return ToolChoice("none")
    if choice == "required":
        return checked_choice(ToolChoice("required"), tools)
    if isinstance(choice, dict) and choice.get("type") == "function":
        fields = Fields(choice, body.place("tool_choice"))
        name = (fields.inner("function") or fields).needed_text("name")
        return checked_choice(ToolChoice("required", (name,)), tools)
    raise body.wrong(
        "tool_choice", "'none', 'auto', 'required', or the name of a function: other kinds are not"
    )


def read_format(format: Fields | None) -> OutputFormat | None:
    """Return the `response_format` of chat completions, or the `text.format` of responses."""
    if format is None:
        return None
    kind = format.needed_text("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat()
    if kind == "json_schema":
        described = format.inner("json_schema") or format
        return OutputFormat(described.object("schema"), described.text("name") or "answer")
    raise format.wrong("type", "'text', 'json_object' or 'json_schema'")
