"""Arguments as separate plain texts, converted by the tool's JSON schema, with their grammar rules.

Markup without types (`<parameter=zip>\n01234\n</parameter>`) does not distinguish strings from numbers. The schema
decides: a parameter declared as a string keeps its text.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from hud.engine.chat.tool_calls.format import Mark
from hud.engine.chat.tool_calls.json_calls import call, loaded, quoted, value_rule
from hud.trace import ToolCall, ToolSpec
from hud.trace.json_values import is_writable

_DEEPEST, _MOST_BRANCHES = 4, 16
"""Limits on followed references and alternatives of a schema."""
_BRANCHES = ("anyOf", "oneOf", "allOf")
_LONGEST_LITERAL = 10_000
_WORDS = {"true": True, "false": False}
_NOTHING = ("null", "none")


def typed_call(
    text: str, name: re.Pattern[str], argument: re.Pattern[str], tools: Sequence[ToolSpec]
) -> list[ToolCall] | None:
    """Return the call in text: what `name` finds, and then key and value of each `argument`; None where anything else is there."""
    named = name.match(text)
    if named is None:
        return None
    schema = parameters_of(named[1], tools)
    arguments: dict[str, Any] = {}
    at = named.end()
    while (match := argument.match(text, at)) is not None:
        arguments[match[1]] = typed_value(match[2], match[1], schema)
        at = match.end()
    return [call(named[1], arguments)] if not text[at:].strip() else None


def parameters_of(name: str, tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """Return the schema of a tool's arguments; empty for a tool that is not known."""
    for tool in tools:
        if tool.name == name:
            return tool.parameters
    return {}


def typed_value(text: str, parameter: str, schema: dict[str, Any]) -> Any:
    """Return the value of one parameter; `schema` is that of all arguments.

    Types are tried in the order of the schema, null first. Text that fits none stays text: the tool's own check names
    the mistake. Without a declared type, JSON that is not a string is read as such, and everything else is text.
    """
    properties = schema.get("properties")
    declared = properties.get(parameter) if isinstance(properties, dict) else None
    if declared is None:
        declared = schema.get("additionalProperties")
    types = schema_types(declared, schema)
    if not types:
        value = _structured(text)
        return text if value is None or isinstance(value, str) else value
    word = text.strip().lower()
    if "null" in types and word in _NOTHING:
        return None
    for kind in types:
        value = _read(text, kind)
        if value is not None:
            return value
    return text


def coerced(value: Any, parameter: str, schema: dict[str, Any]) -> Any:
    """Return a value that was written in quotes as its schema types it; other values as they are."""
    return typed_value(value, parameter, schema) if isinstance(value, str) else value


def schema_types(
    declared: Any, root: dict[str, Any], seen: frozenset[int] = frozenset()
) -> list[str]:
    """Return the JSON types that a schema allows, in its order; none where it does not say."""
    if not isinstance(declared, dict) or id(declared) in seen or len(seen) >= _DEEPEST:
        return []
    seen |= {id(declared)}
    if isinstance(declared.get("$ref"), str):
        return schema_types(_referenced(declared["$ref"], root), root, seen)
    kind = declared.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [name for name in kind if isinstance(name, str)]
    values = declared.get("enum", [declared["const"]] if "const" in declared else None)
    if isinstance(values, list):
        return list(dict.fromkeys(_type_of(value) for value in values))
    branches = next((declared[word] for word in _BRANCHES if declared.get(word)), None)
    branch_types: list[str] = []
    for branch in branches[:_MOST_BRANCHES] if isinstance(branches, list) else ():
        branch_types += schema_types(branch, root, seen)
    return list(dict.fromkeys(branch_types))


def _referenced(path: str, root: dict[str, Any]) -> Any:
    place: Any = root
    for part in path.removeprefix("#").strip("/").split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        place = place.get(part) if isinstance(place, dict) else None
    return place


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    kinds = {str: "string", int: "integer", float: "number", list: "array"}
    return kinds.get(type(value), "object")


def _read(text: str, kind: str) -> Any:
    """Return the value of one JSON type that text spells, None if it spells none."""
    if kind == "string":
        return text
    if kind == "boolean":
        return _WORDS.get(text.strip().lower())
    value = _structured(text)
    if kind == "integer":
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            return int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if kind == "number":
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    wanted = {"array": list, "object": dict}.get(kind)
    return value if wanted is not None and isinstance(value, wanted) else None


def _structured(text: str) -> Any:
    """Return the value of JSON, or of a Python literal of JSON's types; None if text is neither."""
    value = loaded(text)
    stripped = text.strip()
    if value is not None or not stripped.startswith(("{", "[")) or len(stripped) > _LONGEST_LITERAL:
        return value
    try:
        literal = ast.literal_eval(stripped)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return literal if is_json(literal) else None


def is_json(value: Any) -> bool:
    """True for a value that JSON can carry."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_json(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(is_json(inner) for inner in value)
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return is_writable(value)
    return value is None or isinstance(value, str)


def call_rules(
    tools: Sequence[ToolSpec],
    begin: Callable[[str], str],
    end: str,
    *,
    outer: tuple[str, str],
    between: str | None,
    opening: Callable[[str], str],
    closing: str,
    mark: Mark,
) -> str:
    """Return Lark rules, the first named `calls`, of calls whose arguments are written one by one, in the schema's order.

    `begin` gives the terms of a tool's name, `end` those behind its arguments, `outer` those around a call and `between`
    those before a further one, None for a single call. `opening` gives the terms before a key's value; `closing` is the text
    behind it. A string is any text up to `closing`; other values are JSON that keeps the parameter's schema.
    """
    names, rules = [], []
    closed = mark(closing)
    for place, tool in enumerate(tools):
        names.append(f"call_{place}")
        properties: dict[str, Any] = tool.parameters.get("properties") or {}
        required = tool.parameters.get("required") or []
        terms, needed = [], []
        for spot, (key, schema) in enumerate(properties.items()):
            name = f"call_{place}_{spot}"
            if "string" not in schema_types(schema, tool.parameters) or _worded(schema):
                needed.append(f"{name}: {opening(key)} {name}_value {closed}")
                needed.append(f"{name}_value: {_value(schema, tool.parameters)}")
            elif closed == quoted(closing):
                needed.append(f"{name}: {opening(key)} {name}_text")
                needed.append(f"{name}_text[suffix={closed}]: /(.|\\n)*/")
            else:
                needed.append(f"{name}: {opening(key)} /(.|\\n)*/ {closed}")
            terms.append(name if key in required else f"{name}?")
        rules += [f"call_{place}: {begin(tool.name)} {' '.join(terms)}{end}", *needed]
    more = "" if between is None else f" ({between} call)*"
    call = f"call: {outer[0]} ({' | '.join(names)}) {outer[1]}"
    return "\n".join([f"calls: call{more}", call, *rules])


def _worded(schema: Any) -> bool:
    """True for a choice of strings, which is written without quotes."""
    values = schema.get("enum") if isinstance(schema, dict) else None
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _value(schema: Any, root: dict[str, Any]) -> str:
    if _worded(schema):
        return " | ".join(quoted(value) for value in schema["enum"])
    return value_rule(schema, root)
