"""Tool calls as JSON objects, shared by the formats with JSON between marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hud import exact_json
from hud.trace import ToolCall, ToolSpec, new_id

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
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = loaded(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return call(name, arguments)


def calls_of(values: Iterable[Any]) -> list[ToolCall] | None:
    """Return the calls in values, None if one has none."""
    calls = []
    for value in values:
        found = call_of(value)
        if found is None:
            return None
        calls.append(found)
    return calls


def known(calls: list[ToolCall] | None, tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
    """Return the calls if there are any and all name one of `tools`, else None."""
    names = {tool.name for tool in tools}
    return calls if calls and all(one.name in names for one in calls) else None


def json_rule(schema: dict[str, Any]) -> str:
    """Return a Lark term for compact JSON by a schema."""
    return f"%json {exact_json.dumps({**schema, 'x-guidance': _COMPACT}).decode()}"


def value_rule(schema: Any, root: dict[str, Any]) -> str:
    """Return a Lark term for the JSON of one parameter; `root` is the schema of all arguments, with its definitions."""
    whole = dict(schema) if isinstance(schema, dict) else {}
    for definitions in ("$defs", "definitions"):
        if definitions in root:
            whole.setdefault(definitions, root[definitions])
    return json_rule(whole)


def call_schema(tools: Sequence[ToolSpec], key: str = "arguments") -> dict[str, Any]:
    """Return the schema of `{"name": ..., key: {...}}` for one of `tools`."""
    described = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                key: {"type": "object", **tool.parameters},
            },
            "required": ["name", key],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return described[0] if len(described) == 1 else {"anyOf": described}


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
