"""What a model wrote, taken apart: reasoning, text and tool calls. Never raises, whatever it wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from hud.trace import ToolCall, new_id

_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_THINKING = re.compile(r"^\s*(?:<think>)?(.*?)</think>", re.DOTALL)
_UNFINISHED = re.compile(r"^\s*<think>(.*)$", re.DOTALL)


@dataclass(frozen=True)
class Parsed:
    """One turn of a model."""

    content: str | None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    malformed: bool = False
    """True when there was a tool call that could not be read."""


def parse_output(text: str, tools: Iterable[str] = ()) -> Parsed:
    """Take a model's turn apart.

    Tool calls are `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen), or the whole turn
    is such an object (or a list of them) that names one of `tools`.
    """
    reasoning, text = _reasoning(text)
    blocks = _BLOCK.findall(text)
    if not blocks:
        calls = plain_calls(text, tools)
        return Parsed(None if calls else text.strip() or None, reasoning, calls)
    calls, malformed = [], False
    for block in blocks:
        call = read_call(block)
        malformed = malformed or call is None
        if call is not None:
            calls.append(call)
    content = _BLOCK.sub("", text).strip() or None
    return Parsed(content, reasoning, calls, malformed)


def read_call(block: str) -> ToolCall | None:
    """Return the call that stands between `<tool_call>` and `</tool_call>`, None if it cannot be read."""
    return _call(_json(block))


def plain_calls(text: str, tools: Iterable[str]) -> list[ToolCall]:
    """Return the calls of a turn that is nothing but calls of `tools`, without any marks; else none."""
    stripped, known = text.strip(), set(tools)
    if not known or not stripped.startswith(("{", "[")):
        return []
    value = _json(stripped)
    calls = [_call(item) for item in (value if isinstance(value, list) else [value])]
    named = [call for call in calls if call is not None and call.name in known]
    return named if len(named) == len(calls) else []


def _reasoning(text: str) -> tuple[str | None, str]:
    match = _THINKING.match(text) if "</think>" in text else None
    if match:
        return match[1].strip() or None, text[match.end() :]
    match = _UNFINISHED.match(text)
    return (match[1].strip() or None, "") if match else (None, text)


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _call(value: Any) -> ToolCall | None:
    """Return the call that a JSON value says, or None if it says none."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _json(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(id=f"call_{new_id()[:12]}", name=name, arguments=arguments)
