"""Hermes and Qwen 2.5 to 3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; and plain JSON without marks."""

from __future__ import annotations

from collections.abc import Sequence

from hud.engine.chat.template_text import TemplateText
from hud.engine.chat.tool_calls.format import Mark
from hud.engine.chat.tool_calls.json_calls import (
    call_schema,
    calls_of,
    declared_calls,
    json_rule,
    loaded,
)
from hud.engine.chat.tool_calls.marked import MarkedFormat
from hud.engine.chat.tool_calls.writing import (
    WrittenCall,
    each_call,
    json_call,
    listed_calls,
)
from hud.trace import ToolCall, ToolSpec

BEGIN, END = "<tool_call>", "</tool_call>"


def _read(_mark: str, text: str, _tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
    return calls_of([loaded(text)])


def _read_whole(text: str, tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
    value = loaded(text)
    return declared_calls(calls_of(value if isinstance(value, list) else [value]), tools)


def _rules(tools: Sequence[ToolSpec], mark: Mark, many: bool) -> str:
    call = f"{mark(BEGIN)} /\\n?/ named /\\n?/ {mark(END)}"
    return f"calls: call{'+' if many else ''}\ncall: {call}\nnamed: {json_rule(call_schema(tools))}"


def _plain_rules(tools: Sequence[ToolSpec], _mark: Mark, many: bool) -> str:
    schema = call_schema(tools)
    listed = {"type": "array", "items": schema, "minItems": 1}
    return f"calls: {json_rule({'anyOf': [schema, listed]} if many else schema)}"


def _write_plain(calls: Sequence[WrittenCall]) -> TemplateText:
    return json_call(*calls[0]) if len(calls) == 1 else listed_calls(calls)


HERMES = MarkedFormat(
    names=("hermes", "qwen", "qwen25"),
    templates=((BEGIN,),),
    grammar=_rules,
    write=each_call(f"{BEGIN}\n", json_call, f"\n{END}", "\n"),
    blocks=((BEGIN, END),),
    read=_read,
    read_whole=_read_whole,
    whole_starts="{[",
)
JSON = MarkedFormat(
    names=("json",),
    templates=(),
    grammar=_plain_rules,
    write=_write_plain,
    read_whole=_read_whole,
    whole_starts="{[",
)
"""The whole turn is one call of a known tool, `{"name": ..., "arguments": {...}}`, or a list of calls."""
