"""Llama 3.1 to 3.3: the whole turn is `{"name": ..., "parameters": {...}}`, several separated by `;`; a `<|python_tag|>` may precede it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hud.engine.chat.tool_calls.format import Mark
from hud.engine.chat.tool_calls.json_calls import (
    call_schema,
    calls_of,
    declared_calls,
    json_rule,
    loaded,
)
from hud.engine.chat.tool_calls.marked import MarkedFormat
from hud.engine.chat.tool_calls.writing import each_call, json_call
from hud.trace import ToolCall, ToolSpec

PYTHON_TAG = "<|python_tag|>"
_DECODER = json.JSONDecoder()


def _objects(text: str) -> list[Any] | None:
    """Return JSON objects that are separated by semicolons or white space, None if text holds anything else."""
    objects, at = [], 0
    while at < len(text):
        try:
            end = _DECODER.raw_decode(text, at)[1]
        except (ValueError, RecursionError):
            return None
        objects.append(loaded(text[at:end]))
        at = end
        while at < len(text) and (text[at].isspace() or text[at] == ";"):
            at += 1
    return objects


def _read(_mark: str, text: str, _tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
    objects = _objects(text.strip())
    return calls_of(objects) if objects else None


def _read_whole(text: str, tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
    objects = _objects(text)
    return declared_calls(calls_of(objects) if objects else None, tools)


def _rules(tools: Sequence[ToolSpec], _mark: Mark, many: bool) -> str:
    more = " (/; / call)*" if many else ""
    return f"calls: call{more}\ncall: {json_rule(call_schema(tools, 'parameters'))}"


LLAMA3_JSON = MarkedFormat(
    names=("llama3_json", "llama4_json", "llama3"),
    templates=(("<|start_header_id|>", '"parameters": '), ("<|header_start|>", '"parameters": ')),
    grammar=_rules,
    write=each_call("", lambda name, values: json_call(name, values, "parameters"), "", "; "),
    blocks=((PYTHON_TAG, None),),
    read=_read,
    read_whole=_read_whole,
    whole_starts="{",
)
