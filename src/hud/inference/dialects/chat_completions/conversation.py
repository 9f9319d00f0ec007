"""Messages, tools and their choice as chat completions writes them, which is also how we keep them."""

from __future__ import annotations

from typing import Any

from hud.errors import UsageError
from hud.inference.dialects.codec import Refusal
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import OutputFormat, ToolChoice
from hud.trace import ChatMessage, ToolSpec

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
MOST_STOPS = 16


def read_message(message: Fields) -> ChatMessage:
    """Return a message, checked, with what only a provider would know left out."""
    role = _ROLES.get(message.needed_text("role"))
    if role is None:
        raise message.wrong("role", f"one of {', '.join(_ROLES)}")
    read: ChatMessage = {"role": role, "content": read_content(message)}
    if role == "assistant":
        calls = [_read_call(call) for call in message.objects("tool_calls")]
        if calls:
            read["tool_calls"] = calls
        reasoning = message.text("reasoning_content", "reasoning")
        if reasoning:
            read["reasoning_content"] = reasoning
    elif read["content"] is None:
        raise UsageError(f"{message.place('content')} is missing.")
    if role == "tool":
        read["tool_call_id"] = message.needed_text("tool_call_id")
    return read


def read_content(message: Fields) -> Any:
    """Return content as text where it is nothing else; with images, as a list of parts."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content
    parts = [_read_part(part) for part in message.objects("content")]
    return join_parts(parts)


def join_parts(parts: list[dict[str, Any]], separator: str = "\n") -> Any:
    """Return parts as one text, or as they are if there is an image among them."""
    if all(part["type"] == "text" for part in parts):
        return separator.join(part["text"] for part in parts)
    return parts


def image_part(url: str) -> dict[str, Any]:
    """Return an image as a part of a message."""
    return {"type": "image_url", "image_url": {"url": url}}


def _read_part(part: Fields) -> dict[str, Any]:
    kind = part.needed_text("type")
    if kind in ("text", "input_text", "output_text"):
        return {"type": "text", "text": part.text("text") or ""}
    if kind == "refusal":
        return {"type": "text", "text": part.text("refusal") or ""}
    if kind == "image_url":
        image = part.get("image_url")
        if isinstance(image, str):
            return image_part(image)
        return image_part(Fields(image, part.place("image_url")).needed_text("url"))
    raise UsageError(f"{part.place('type')}: content of type {kind!r} is not supported here.")


def _read_call(call: Fields) -> dict[str, Any]:
    function = call.inner("function")
    if function is None:
        raise UsageError(f"{call.place('function')} is missing; only function calls are supported.")
    return call_message(
        call.text("id") or "", function.needed_text("name"), function.text("arguments") or "{}"
    )


def call_message(identifier: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a tool call as a message of the assistant holds it."""
    return {
        "id": identifier,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def read_tool(function: Fields) -> ToolSpec:
    """Return a function's name, description and schema."""
    schema = function.inner("parameters")
    return tool_spec(
        function.needed_text("name"),
        function.text("description") or "",
        None if schema is None else schema.values,
    )


def tool_spec(name: str, description: str, schema: dict[str, Any] | None) -> ToolSpec:
    """Return a tool; without a schema it takes no arguments. A schema is kept as it was sent: prompts show it."""
    if schema is None:
        return ToolSpec(name=name, description=description)
    return ToolSpec(name=name, description=description, parameters=schema)


def read_tools(body: Fields) -> list[ToolSpec]:
    """Return the tools of a chat completion."""
    tools = []
    for tool in body.objects("tools"):
        function = tool.inner("function")
        if tool.text("type") not in (None, "function") or function is None:
            raise UsageError(
                f"{tool.place('type')}: tools of type {tool.text('type')!r} are not supported here, only functions."
            )
        tools.append(read_tool(function))
    return tools


def read_tool_choice(body: Fields, tools: list[ToolSpec]) -> ToolChoice:
    """Return `tool_choice` as chat completions or responses write it."""
    choice = body.get("tool_choice")
    if choice is None or choice == "auto":
        return ToolChoice()
    if choice == "none":
        return ToolChoice("none")
    if choice == "required":
        return checked_choice(ToolChoice("required"), tools)
    if isinstance(choice, dict) and choice.get("type") == "function":
        given = Fields(choice, body.place("tool_choice"))
        name = (given.inner("function") or given).needed_text("name")
        return checked_choice(ToolChoice("required", (name,)), tools)
    raise body.wrong(
        "tool_choice", "'none', 'auto', 'required', or the name of a function: other kinds are not"
    )


def checked_choice(choice: ToolChoice, tools: list[ToolSpec]) -> ToolChoice:
    """Refuse to require tools that were not given."""
    known = {tool.name for tool in tools}
    missing = [name for name in choice.names if name not in known]
    if missing or not known:
        what = f"the tool {missing[0]!r}" if missing else "a tool call"
        raise UsageError(f"tool_choice requires {what}, but the request gives no such tool.")
    return choice


def read_format(format: Fields | None) -> OutputFormat | None:
    """Return a response format: of chat completions, or `text.format` of responses."""
    if format is None:
        return None
    kind = format.needed_text("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat()
    if kind == "json_schema":
        described = format.inner("json_schema") or format
        schema = described.inner("schema")
        return OutputFormat(
            None if schema is None else schema.values, described.text("name") or "answer"
        )
    raise format.wrong("type", "'text', 'json_object' or 'json_schema'")


def read_stops(body: Fields, *names: str) -> tuple[str, ...]:
    """Return the stop strings."""
    stops = tuple(stop for stop in body.texts(*names) if stop)
    if len(stops) > MOST_STOPS:
        raise UsageError(f"{body.place(names[0])} holds more than {MOST_STOPS} stop strings.")
    return stops


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """Return an error as OpenAI's clients read it."""
    kind = _KINDS.get(refusal.status) or (
        "server_error" if refusal.status >= 500 else "invalid_request_error"
    )
    code = {404: "model_not_found", 429: "rate_limit_exceeded"}.get(refusal.status)
    return {
        "error": {"message": refusal.message, "type": kind, "param": None, "code": code},
        "detail": refusal.message,
    }
