"""Llama 3.2 and 4, and others: the whole turn is a Python list of calls, `[look(at=3), find(name="x")]`.

Only literals are read, nothing is evaluated. A name that stands for a value is text: published templates write strings
without quotes. Values in quotes are typed by the tool's schema, since some templates quote every value.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hud.engine.chat.template_text import TemplateText, joined
from hud.engine.chat.tool_calls.format import Mark
from hud.engine.chat.tool_calls.json_calls import call, declared_calls, quoted, value_rule
from hud.engine.chat.tool_calls.marked import MarkedFormat
from hud.engine.chat.tool_calls.typed import coerced, is_json, parameters_of
from hud.engine.chat.tool_calls.writing import WrittenCall, each_call, mark, pairs
from hud.trace import ToolCall, ToolSpec

PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"
_LONGEST = 100_000
_NAMES = {"true": True, "false": False, "null": None}


def _read(_mark: str, text: str, tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
    text = text.strip()
    if len(text) > _LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            # An unknown escape in a string is a warning of the language.
            warnings.simplefilter("ignore")
            tree = ast.parse(text, mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        calls = [_call(node, tools) for node in nodes]
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return calls or None


def _read_whole(text: str, tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
    return declared_calls(_read("", text, tools), tools)


def _call(node: ast.expr, tools: Sequence[ToolSpec]) -> ToolCall:
    """Return the call that a node of the syntax tree says; raises `ValueError` if it says none."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    name = ast.unparse(node.func)
    schema = parameters_of(name, tools)
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("not a named argument")
        value = _value(keyword.value)
        if not is_json(value):
            raise ValueError("not a value of JSON")
        arguments[keyword.arg] = coerced(value, keyword.arg, schema)
    return call(name, arguments)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return _NAMES.get(node.id, node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(inner) for inner in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_value(key) if key is not None else None for key in node.keys]
        return dict(zip(keys, map(_value, node.values), strict=True))
    return ast.literal_eval(node)


def _rules(tools: Sequence[ToolSpec], _mark: Mark, many: bool) -> str:
    alternatives, rules = [], []
    for place, tool in enumerate(tools):
        name = f"call_{place}"
        alternatives.append(name)
        properties: dict[str, Any] = tool.parameters.get("properties") or {}
        required = [key for key in tool.parameters.get("required") or [] if key in properties]
        optional = [key for key in properties if key not in required]
        terms = []
        for spot, key in enumerate([*required, *optional]):
            rules.append(f"{name}_{spot}: {quoted(key + '=')} {name}_{spot}_value")
            rules.append(f"{name}_{spot}_value: {value_rule(properties[key], tool.parameters)}")
            separator = '", " ' if spot else ""
            # Without a required argument to begin with, optional ones are written from the first on.
            terms.append(
                f"{separator}{name}_{spot}" if key in required else f"({separator}{name}_{spot}"
            )
        terms[len(required) :] = [" ".join(terms[len(required) :]) + ")?" * len(optional)]
        rules.append(f'{name}: {quoted(tool.name + "(")} {" ".join(terms)} ")"')
    more = ' (", " call)*' if many else ""
    return "\n".join([f'calls: "[" call{more} "]"', "call: " + " | ".join(alternatives), *rules])


def _written(name: str, arguments: Any) -> str:
    named = (joined((key, mark("="), repr(value))) for key, value in pairs(arguments))
    return joined((name, mark("("), mark(", ").join(named), mark(")")))


def _write(calls: Sequence[WrittenCall]) -> TemplateText:
    return joined((mark("["), each_call("", _written, "", ", ")(calls), mark("]")))


PYTHONIC = MarkedFormat(
    names=("pythonic",),
    templates=(("func_name1(",),),
    grammar=_rules,
    write=_write,
    blocks=((PYTHON_START, PYTHON_END),),
    read=_read,
    read_whole=_read_whole,
    whole_starts="[",
)
LLAMA4_PYTHONIC = replace(
    PYTHONIC, names=("llama4_pythonic",), templates=(("<|header_start|>", "func_name1("),)
)
