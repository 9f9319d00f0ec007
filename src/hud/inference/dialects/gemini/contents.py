"""Contents, tools and their choice as Gemini writes them. Fields may be written in camel or in snake case."""

from __future__ import annotations

from typing import Any

import orjson

from hud.errors import UsageError
from hud.inference.dialects.chat_completions.conversation import (
    call_message,
    checked_choice,
    image_part,
    join_parts,
    tool_spec,
)
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import OutputFormat, ToolChoice
from hud.trace import ChatMessage, ToolSpec


def read_contents(body: Fields) -> list[ChatMessage]:
    """Return the system instruction and the contents as chat messages."""
    messages: list[ChatMessage] = []
    system = body.get("systemInstruction", "system_instruction")
    if isinstance(system, str):
        messages.append({"role": "system", "content": system})
    elif system is not None:
        parts = _parts(Fields(system, "systemInstruction"))
        text = "\n".join(part.text("text") or "" for part in parts)
        messages.append({"role": "system", "content": text})
    # Calls have no ids here, or may have none: an answer belongs to the earliest open call of its name.
    open_calls: list[tuple[str, str]] = []
    contents = body.get("contents")
    if isinstance(contents, str):
        return [*messages, {"role": "user", "content": contents}]
    for content in (
        body.objects("contents")
        if isinstance(contents, list)
        else [Fields(contents, "contents")]
        if contents
        else []
    ):
        role = content.text("role") or "user"
        if role == "model":
            messages.append(_read_model(content, open_calls))
        elif role in ("user", "function", "tool"):
            messages.extend(_read_user(content, open_calls))
        else:
            raise content.wrong("role", "'user' or 'model'")
    return messages


def _parts(content: Fields) -> list[Fields]:
    parts = content.get("parts")
    return (
        [content.inner("parts") or Fields({})]
        if isinstance(parts, dict)
        else content.objects("parts")
    )


def _read_model(content: Fields, open_calls: list[tuple[str, str]]) -> ChatMessage:
    read: ChatMessage = {"role": "assistant", "content": None}
    calls: list[dict[str, Any]] = []
    for part in _parts(content):
        call = part.inner("functionCall", "function_call")
        text = part.text("text")
        if call is not None:
            name = call.needed_text("name")
            identifier = call.text("id") or f"call_{len(open_calls) + len(calls)}_{name}"
            arguments = call.inner("args")
            calls.append(
                call_message(
                    identifier,
                    name,
                    orjson.dumps({} if arguments is None else arguments.values).decode(),
                )
            )
            open_calls.append((name, identifier))
        elif text is not None and part.flag("thought"):
            read["reasoning_content"] = read.get("reasoning_content", "") + text
        elif text is not None:
            read["content"] = (read["content"] or "") + text
        elif part.get("thoughtSignature", "thought_signature") is None:
            raise UsageError(f"{part.where}: only text and function calls are supported here.")
    if calls:
        read["tool_calls"] = calls
    return read


def _read_user(content: Fields, open_calls: list[tuple[str, str]]) -> list[ChatMessage]:
    results: list[ChatMessage] = []
    parts: list[dict[str, Any]] = []
    for part in _parts(content):
        response = part.inner("functionResponse", "function_response")
        if response is None:
            parts.append(_read_part(part))
            continue
        name = response.needed_text("name")
        identifier = response.text("id") or next(
            (call for known, call in open_calls if known == name), name
        )
        open_calls[:] = [call for call in open_calls if call[1] != identifier]
        value = response.inner("response")
        results.append(
            {
                "role": "tool",
                "tool_call_id": identifier,
                "content": _result_text({} if value is None else value.values),
            }
        )
    return [*results, {"role": "user", "content": join_parts(parts)}] if parts else results


def _result_text(value: dict[str, Any]) -> str:
    """Return a function's answer as a model reads it; the client wraps a plain one into an object."""
    if len(value) == 1:
        (key, only) = next(iter(value.items()))
        if key in ("result", "output") and isinstance(only, str):
            return only
    return orjson.dumps(value).decode()


def _read_part(part: Fields) -> dict[str, Any]:
    text = part.text("text")
    if text is not None:
        return {"type": "text", "text": text}
    data = part.inner("inlineData", "inline_data")
    if data is not None:
        kind = data.text("mimeType", "mime_type") or ""
        if kind.startswith("image/"):
            return image_part(f"data:{kind};base64,{data.needed_text('data')}")
    raise UsageError(f"{part.where}: only text and inline images are supported here.")


def read_tools(body: Fields) -> list[ToolSpec]:
    """Return the functions that may be called."""
    tools: list[ToolSpec] = []
    for tool in body.objects("tools"):
        unknown = tool.values.keys() - {"functionDeclarations", "function_declarations"}
        given = [name for name in unknown if tool.values[name] is not None]
        if given:
            raise UsageError(
                f"{tool.where}: {min(given)} is not supported here, only functionDeclarations."
            )
        for function in tool.objects("functionDeclarations", "function_declarations"):
            name = function.needed_text("name")
            tools.append(tool_spec(name, function.text("description") or "", _schema_of(function)))
    return tools


def _schema_of(function: Fields) -> dict[str, Any] | None:
    schema = function.inner("parametersJsonSchema", "parameters_json_schema")
    if schema is not None:
        return schema.values
    schema = function.inner("parameters")
    return None if schema is None else json_schema(schema.values)


def json_schema(schema: Any) -> Any:
    """Return a schema of Gemini's (OpenAPI, types in capitals) as a JSON schema."""
    if isinstance(schema, list):
        return [json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    read: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "type" and isinstance(value, str):
            read[name] = value.lower()
        elif name == "properties" and isinstance(value, dict):
            read[name] = {key: json_schema(item) for key, item in value.items()}
        elif name in ("enum", "required", "default", "example"):
            read[name] = value
        else:
            read[name] = json_schema(value)
    return read


def read_choice(body: Fields, tools: list[ToolSpec]) -> ToolChoice:
    """Return whether and which functions are called."""
    config = body.inner("toolConfig", "tool_config")
    calling = None
    if config is not None:
        calling = config.inner("functionCallingConfig", "function_calling_config")
    if calling is None:
        return ToolChoice()
    mode = (calling.text("mode") or "AUTO").upper()
    names = calling.texts("allowedFunctionNames", "allowed_function_names")
    match mode:
        case "AUTO" | "MODE_UNSPECIFIED":
            return ToolChoice()
        case "NONE":
            return ToolChoice("none")
        case "ANY":
            return checked_choice(ToolChoice("required", names), tools)
    raise calling.wrong("mode", "'AUTO', 'ANY' or 'NONE'")


def read_format(config: Fields) -> OutputFormat | None:
    """Return the form that the answer has to have."""
    kind = config.text("responseMimeType", "response_mime_type")
    schema = config.inner("responseJsonSchema", "response_json_schema")
    if schema is not None:
        return OutputFormat(schema.values)
    schema = config.inner("responseSchema", "response_schema")
    if schema is not None:
        return OutputFormat(json_schema(schema.values))
    if kind in (None, "text/plain"):
        return None
    if kind == "application/json":
        return OutputFormat()
    raise config.wrong("responseMimeType", "'text/plain' or 'application/json'")
