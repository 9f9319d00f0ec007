"""Tool calls as JSON objects, shared by the formats with JSON between marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hud import exact_json
from hud.trace import ToolCall, ToolSpec, new_id, parsed_arguments

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Compact JSON, as in prompts: given free white space, a weak model may generate it endlessly."""


def call(name: str, arguments: dict[str, Any]) -> ToolCall:
    """Return a call with a new id."""
    return ToolCall(id=f"call_{new_id()[:12]}", name=name, arguments=arguments)


def loaded(text: str) -> Any:
    """Return the value of JSON text, None for other text."""
    try:
        return exact_json.loads(text)
    except (exact_json.JSONDecodeError, RecursionError):
        return None


def call_of(value: Any) -> ToolCall | None:
    """Return the call in a JSON value, or None."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name")
    arguments = value.get("arguments", value.get("parameters"))
    if arguments is None or isinstance(arguments, str):
        arguments = parsed_arguments(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return call(name, arguments)


def calls_of(values: Iterable[Any]) -> list[ToolCall] | None:
    """Return the calls in values, None if one has none."""
    calls = []
    for value in values:
        parsed = call_of(value)
        if parsed is None:
            return None
        calls.append(parsed)
    return calls


def declared_calls(
    calls: list[ToolCall] | None, tools: Sequence[ToolSpec]
) -> list[ToolCall] | None:
    """Return the calls if there are any and all name one of `tools`, else None."""
    names = {tool.name for tool in tools}
    return calls if calls and all(made.name in names for made in calls) else None


def json_rule(schema: dict[str, Any]) -> str:
    """Return a Lark term for compact JSON by a schema."""
    return f"%json {exact_json.dumps({**schema, 'x-guidance': _COMPACT}).decode()}"


def value_rule(schema: Any, root: dict[str, Any]) -> str:
    """Return a Lark term for the JSON of one parameter; `root` is the schema of all arguments, with its definitions."""
    resolved = dict(schema) if isinstance(schema, dict) else {}
    if _refers(resolved):
        resolved = {**_moved(resolved, "root"), "$defs": {"root": _moved(root, "root")}}
    return json_rule(resolved)


def _refers(schema: Any) -> bool:
    """True for a schema with a reference into its own document."""
    if isinstance(schema, dict):
        return _is_local(schema.get("$ref")) or any(map(_refers, schema.values()))
    return isinstance(schema, list) and any(map(_refers, schema))


def _moved(schema: Any, name: str) -> Any:
    """Return a schema whose references lead to `#/$defs/NAME`, where its document will be."""
    if isinstance(schema, dict):
        moved = {key: _moved(value, name) for key, value in schema.items()}
        if _is_local(schema.get("$ref")):
            moved["$ref"] = f"#/$defs/{name}{schema['$ref'][1:]}"
        return moved
    return [_moved(item, name) for item in schema] if isinstance(schema, list) else schema


def _is_local(reference: Any) -> bool:
    return isinstance(reference, str) and reference.startswith("#")


def call_schema(tools: Sequence[ToolSpec], key: str = "arguments") -> dict[str, Any]:
    """Return the schema of `{"name": ..., key: {...}}` for one of `tools`."""
    described, documents = [], {}
    for place, tool in enumerate(tools):
        arguments: dict[str, Any] = {"type": "object", **tool.parameters}
        if _refers(arguments):
            documents[f"tool_{place}"] = _moved(arguments, f"tool_{place}")
            arguments = {"$ref": f"#/$defs/tool_{place}"}
        described.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, key: arguments},
                "required": ["name", key],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = described[0] if len(described) == 1 else {"anyOf": described}
    return {**schema, "$defs": documents} if documents else schema


def by_tool(tools: Sequence[ToolSpec], terms: Callable[[ToolSpec], str]) -> str:
    """Return a Lark rule `call` with one alternative for each tool, and a rule for its JSON arguments.

    `terms` gives an alternative's terms, in which `ARGUMENTS` stands for the rule of the arguments.
    """
    alternatives, rules = [], []
    for place, tool in enumerate(tools):
        alternatives.append(terms(tool).replace("ARGUMENTS", f"arguments_{place}"))
        rules.append(f"arguments_{place}: {json_rule({'type': 'object', **tool.parameters})}")
    return "\n".join(["call: " + " | ".join(alternatives), *rules])


def quoted(text: str) -> str:
    """Return text as a Lark string."""
    return exact_json.dumps(text).decode()
