"""Tool calls as text: the inverse of parsing. Marks are the template's own text; names and arguments are plain text.

A format's `write` takes the calls of one turn, so that `parse(write(calls))` are these calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from hud.engine.chat.template_text import TemplateText, joined

WrittenCall = tuple[str, Any]
"""A tool's name and its arguments: an object, or the text of arguments that are no JSON."""
Write = Callable[[Sequence[WrittenCall]], TemplateText]

mark = TemplateText.literal


def json_text(value: Any) -> str:
    """Return a value as JSON in one line; a string as it is: malformed arguments, or a text in markup without types."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def json_call(name: str, arguments: Any, key: str = "arguments") -> TemplateText:
    """Return `{"name": ..., KEY: {...}}`."""
    written = (mark('{"name": '), json.dumps(name, ensure_ascii=False))
    return joined((*written, mark(f', "{key}": '), json_text(arguments), mark("}")))


def listed_calls(calls: Sequence[WrittenCall]) -> TemplateText:
    """Return calls as a JSON list."""
    written = mark(", ").join(json_call(*call) for call in calls)
    return joined((mark("["), written, mark("]")))


def each_call(begin: str, call: Callable[[str, Any], str], end: str, between: str) -> Write:
    """Return a writer that puts marks around each call."""

    def write(calls: Sequence[WrittenCall]) -> TemplateText:
        pieces = (joined((mark(begin), call(*written), mark(end))) for written in calls)
        return joined((mark(between).join(pieces),))

    return write


def around(begin: str, write: Write, end: str) -> Write:
    """Return a writer that puts marks around all calls of a turn."""
    return lambda calls: joined((mark(begin), write(calls), mark(end)))


def pairs(arguments: Any) -> list[tuple[str, Any]]:
    """Return the arguments of a format that writes them one by one; malformed ones are dropped."""
    return list(arguments.items()) if isinstance(arguments, dict) else []
