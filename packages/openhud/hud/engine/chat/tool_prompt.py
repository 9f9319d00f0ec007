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
Content = str | list[dict[str, Any]]
"""Content of a message: a text, or parts of texts and pictures."""
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
        return [{**first, "content": together(mark("\n\n"), list(filter(None, parts)))}, *rest]
    return [{"role": _SYSTEM if system else _USER, "content": listed}, *messages]


def with_calls(messages: Sequence[ChatMessage], format: ToolFormat) -> list[ChatMessage]:
    """Return a conversation with calls as text of their turns, and the results after a turn as one user message."""
    written: list[ChatMessage] = []
    results: list[Content] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(together(mark(""), [_RESULT, message["content"], _RESULT_END]))
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


def with_pictures_below(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return a conversation with the pictures of tool results in a user message after them, for templates that drop them."""
    written: list[ChatMessage] = []
    pictures: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool" and isinstance(message["content"], list):
            pictures += [part for part in message["content"] if part["type"] == "image"]
            texts = [part["text"] for part in message["content"] if part["type"] == "text"]
            message = {**message, "content": mark("\n").join(texts) or mark("(a picture, below)")}
        elif message["role"] != "tool" and pictures:
            # After the last result: no message may be between the results of a turn's calls.
            written.append({"role": _USER, "content": pictures})
            pictures = []
        written.append(message)
    return [*written, *([{"role": _USER, "content": pictures}] if pictures else [])]


def together(between: TemplateText, contents: list[Content]) -> Content:
    """Return contents as one: a text or, with pictures, a list of parts."""
    if all(isinstance(content, str) for content in contents):
        return between.join(content for content in contents if isinstance(content, str))
    parts: list[dict[str, Any]] = []
    for place, content in enumerate(contents):
        if place and between:
            parts.append({"type": "text", "text": between})
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts


def _answered(results: list[Content]) -> list[ChatMessage]:
    return [{"role": _USER, "content": together(mark("\n"), results)}] if results else []


def _with_text(message: ChatMessage, format: ToolFormat) -> ChatMessage:
    functions = [call["function"] for call in message["tool_calls"]]
    calls = format.write([(made["name"], made.get("arguments") or {}) for made in functions])
    content = together(mark("\n"), list(filter(None, (message["content"], calls))))
    return {
        **{key: value for key, value in message.items() if key != "tool_calls"},
        "content": content,
    }
