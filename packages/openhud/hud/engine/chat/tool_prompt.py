"""Tools in conversations whose chat template writes none: as text of the system prompt, of turns and of user messages.

Templates of some models (SmolLM2, Gemma 3) drop the offered tools, and the calls and results of earlier turns. Their
conversations are rewritten before they are rendered: every template renders texts of users and assistants. Equal messages
are rewritten equally, so that prompts extend those of earlier turns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hud.engine.chat.template_text import TemplateText, joined
from hud.engine.chat.tool_calls.format import ToolFormat
from hud.engine.chat.tool_calls.writing import mark
from hud.trace import ChatMessage

_USER, _SYSTEM = mark("user"), mark("system")
_RESULT, _RESULT_END = mark("<tool_response>\n"), mark("\n</tool_response>")


def with_tools(
    messages: Sequence[ChatMessage],
    schemas: Sequence[dict[str, Any]],
    format: ToolFormat,
    *,
    system: bool,
) -> list[ChatMessage]:
    """Return a conversation that lists tools in its system message, or in its first one if the template takes no `system`."""
    first, *rest = messages or [{"role": _USER, "content": ""}]
    listed = _listed(schemas, format)
    if first["role"] == (_SYSTEM if system else _USER):
        parts = (first["content"], listed) if system else (listed, first["content"])
        return [{**first, "content": mark("\n\n").join(filter(None, parts))}, *rest]
    return [{"role": _SYSTEM if system else _USER, "content": listed}, *messages]


def with_calls(messages: Sequence[ChatMessage], format: ToolFormat) -> list[ChatMessage]:
    """Return a conversation with calls as text of their turns, and the results after a turn as one user message."""
    written: list[ChatMessage] = []
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(joined((_RESULT, message["content"], _RESULT_END)))
            continue
        written += _answered(results)
        results = []
        written.append(_with_text(message, format) if message.get("tool_calls") else message)
    return [*written, *_answered(results)]


def _listed(schemas: Sequence[dict[str, Any]], format: ToolFormat) -> TemplateText:
    """Return the description of the tools and of how they are called."""
    pieces: list[str] = [
        mark("# Tools\n\nThese tools can be called, described as JSON:\n<tools>\n")
    ]
    for schema in schemas:
        pieces += (json.dumps(schema["function"], ensure_ascii=False), mark("\n"))
    example = format.write([("NAME", {"ARGUMENT": "VALUE"})])
    pieces += (mark("</tools>\n\nTo call a tool, write:\n"), mark(str(example)))
    pieces.append(mark("\n\nThe result follows between <tool_response> and </tool_response>."))
    return joined(pieces)


def _answered(results: list[str]) -> list[ChatMessage]:
    return [{"role": _USER, "content": mark("\n").join(results)}] if results else []


def _with_text(message: ChatMessage, format: ToolFormat) -> ChatMessage:
    functions = [call["function"] for call in message["tool_calls"]]
    calls = format.write([(made["name"], made.get("arguments") or {}) for made in functions])
    content = mark("\n").join(filter(None, (message["content"], calls)))
    return {
        **{key: value for key, value in message.items() if key != "tool_calls"},
        "content": content,
    }
