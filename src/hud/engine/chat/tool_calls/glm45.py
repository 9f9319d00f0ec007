"""GLM 4.5 to 4.7: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`; line breaks between are free.

Values are text; `typed` reads them by the tool's schema.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hud.engine.chat.tool_calls.format import Mark
from hud.engine.chat.tool_calls.json_calls import call, quoted
from hud.engine.chat.tool_calls.marked import MarkedFormat
from hud.engine.chat.tool_calls.typed import parameters_of, typed_value
from hud.engine.chat.tool_calls.typed_rules import call_rules
from hud.trace import ToolCall, ToolSpec

BEGIN, END = "<tool_call>", "</tool_call>"
_NAME = re.compile(r"\s*([^<>\n]+?)\s*(?=<arg_key>|$)")
_ARGUMENT = re.compile(
    r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*(?=<arg_key>|$)", re.DOTALL
)


def _read(_mark: str, text: str, tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
    name = _NAME.match(text)
    if name is None or name[1].startswith(("{", "[")):
        return None
    schema = parameters_of(name[1], tools)
    arguments: dict[str, Any] = {}
    at = name.end()
    while (argument := _ARGUMENT.match(text, at)) is not None:
        key = argument[1].strip()
        arguments[key] = typed_value(argument[2], key, schema)
        at = argument.end()
    return [call(name[1], arguments)] if not text[at:].strip() else None


def _rules(tools: Sequence[ToolSpec], mark: Mark, many: bool) -> str:
    return call_rules(
        tools,
        quoted,
        " /\\n?/",
        outer=(mark(BEGIN), mark(END)),
        between=r"/\n?/" if many else None,
        opening=lambda key: (
            f"/\\n?/ {mark('<arg_key>')} {quoted(key)} {mark('</arg_key>')} /\\n?/ {mark('<arg_value>')}"
        ),
        closing="</arg_value>",
        mark=mark,
    )


GLM45 = MarkedFormat(
    names=("glm45", "glm47", "glm"),
    templates=(("<arg_key>", "<arg_value>"),),
    rules=_rules,
    blocks=((BEGIN, END),),
    read=_read,
)
