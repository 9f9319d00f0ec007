"""GLM 4.5 to 4.7: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`; line breaks between are free.

Values are text; `typed` reads them by the tool's schema.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hud.engine.chat.template_text import joined
from hud.engine.chat.tool_calls.format import Mark
from hud.engine.chat.tool_calls.json_calls import quoted
from hud.engine.chat.tool_calls.marked import MarkedFormat
from hud.engine.chat.tool_calls.typed import call_rules, typed_call
from hud.engine.chat.tool_calls.writing import each_call, json_text, mark, pairs
from hud.trace import ToolCall, ToolSpec

BEGIN, END = "<tool_call>", "</tool_call>"
_NAME = re.compile(r"\s*([^<>\n]+?)\s*(?=<arg_key>|$)")
_ARGUMENT = re.compile(
    r"\s*<arg_key>\s*(.*?)\s*</arg_key>\s*<arg_value>(.*?)</arg_value>\s*(?=<arg_key>|$)", re.DOTALL
)


def _read(_mark: str, text: str, tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
    is_json = text.lstrip().startswith(("{", "["))
    return None if is_json else typed_call(text, _NAME, _ARGUMENT, tools)


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


def _call(name: str, arguments: Any) -> str:
    written: list[str] = [name, mark("\n")]
    for key, value in pairs(arguments):
        written += (mark("<arg_key>"), key, mark("</arg_key>\n<arg_value>"))
        written += (json_text(value), mark("</arg_value>\n"))
    return joined(written)


GLM45 = MarkedFormat(
    names=("glm45", "glm47", "glm"),
    templates=(("<arg_key>", "<arg_value>"),),
    grammar=_rules,
    write=each_call(BEGIN, _call, END, "\n"),
    blocks=((BEGIN, END),),
    read=_read,
)
