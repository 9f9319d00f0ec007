"""Grammar rules of arguments that are written one by one as text, each between marks: see `typed`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hud.engine.chat.tool_calls.format import Mark
from hud.engine.chat.tool_calls.json_calls import quoted, value_rule
from hud.engine.chat.tool_calls.typed import schema_types
from hud.trace import ToolSpec


def value_rules(
    tool: ToolSpec, prefix: str, *, opening: Callable[[str], str], closing: str, mark: Mark
) -> tuple[str, list[str]]:
    """Return the Lark terms of a tool's arguments, in the schema's order, and the rules that they need.

    `opening` gives the terms before a key's value; `closing` is the text behind it. A string is any text up to
    `closing`; other values are JSON that keeps the parameter's schema.
    """
    properties: dict[str, Any] = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required") or []
    closed = mark(closing)
    terms, rules = [], []
    for place, (key, schema) in enumerate(properties.items()):
        name = f"{prefix}_{place}"
        if "string" in schema_types(schema, tool.parameters) and not _worded(schema):
            if closed == quoted(closing):
                rules.append(f"{name}: {opening(key)} {name}_text")
                rules.append(f"{name}_text[suffix={closed}]: /(.|\\n)*/")
            else:
                rules.append(f"{name}: {opening(key)} /(.|\\n)*/ {closed}")
        else:
            rules.append(f"{name}: {opening(key)} {name}_value {closed}")
            rules.append(f"{name}_value: {_value(schema, tool.parameters)}")
        terms.append(name if key in required else f"{name}?")
    return " ".join(terms), rules


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
    """Return Lark rules, the first named `calls`, of calls whose arguments are written one by one.

    `begin` gives the terms of a tool's name, `end` those behind its arguments, `outer` those around a call and `between`
    those before a further one, None for a single call; for the rest see `value_rules`.
    """
    names, rules = [], []
    for place, tool in enumerate(tools):
        name = f"call_{place}"
        names.append(name)
        parameters, needed = value_rules(tool, name, opening=opening, closing=closing, mark=mark)
        rules += [f"{name}: {begin(tool.name)} {parameters}{end}", *needed]
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
