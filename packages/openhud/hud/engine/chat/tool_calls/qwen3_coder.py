"""Qwen3-Coder, Qwen3.5 and 3.6: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`.

Values are text; `typed` reads them by the tool's schema. Each stands on lines of its own, and one line break on either
side belongs to the markup. The outer mark is sometimes left out by these models, and is not needed.
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
FUNCTION, FUNCTION_END = "<function=", "</function>"
_NAME = re.compile(r"\s*([^<>\n]+?)\s*>")
_PARAMETER = re.compile(
    # Up to the closing mark behind which the markup goes on: a value may hold one, too.
    r"\s*<parameter=([^<>\n]+?)>\n?(.*?)\n?</parameter>\s*(?=<parameter=|</function>|$)",
    re.DOTALL,
)


def _read(mark: str, text: str, tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
    if mark == BEGIN:
        text = text.strip()
        if not text.startswith(FUNCTION):
            return None
        text = text[len(FUNCTION) :]
        if text.endswith(FUNCTION_END):
            text = text[: -len(FUNCTION_END)]
    return typed_call(text, _NAME, _PARAMETER, tools)


def _rules(tools: Sequence[ToolSpec], mark: Mark, many: bool) -> str:
    return call_rules(
        tools,
        lambda name: quoted(f"\n<function={name}>\n"),
        "",
        outer=(mark(BEGIN), f'"</function>\\n" {mark(END)}'),
        between=r"/\n/" if many else None,
        opening=lambda key: quoted(f"<parameter={key}>\n"),
        closing="\n</parameter>\n",
        mark=mark,
    )


def _call(name: str, arguments: Any) -> str:
    written: list[str] = [mark(f"\n{FUNCTION}"), name, mark(">\n")]
    for key, value in pairs(arguments):
        written += (mark("<parameter="), key, mark(">\n"), json_text(value))
        written.append(mark("\n</parameter>\n"))
    return joined((*written, mark(f"{FUNCTION_END}\n")))


QWEN3_CODER = MarkedFormat(
    names=("qwen3_coder", "qwen3_xml"),
    templates=((FUNCTION, "<parameter="),),
    grammar=_rules,
    write=each_call(BEGIN, _call, END, "\n"),
    blocks=((BEGIN, END), (FUNCTION, FUNCTION_END)),
    read=_read,
)
