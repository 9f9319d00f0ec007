"""DeepSeek V3 and R1 (`function<｜tool▁sep｜>NAME` and a fenced block of JSON), and V3.1 (`NAME<｜tool▁sep｜>{...}`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hud.engine.chat.template_text import joined
from hud.engine.chat.tool_calls.format import Mark
from hud.engine.chat.tool_calls.json_calls import by_tool, call, loaded, quoted
from hud.engine.chat.tool_calls.marked import MarkedFormat
from hud.engine.chat.tool_calls.writing import around, each_call, json_text, mark
from hud.trace import ToolCall, ToolSpec

GROUP, GROUP_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_FENCED = re.compile(r"\s*([^\n]+?)\s*\n```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL)


def _read_fenced(_mark: str, text: str, _tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
    fenced = _FENCED.fullmatch(text.partition(SEPARATOR)[2])
    return None if fenced is None else _call(fenced[1], fenced[2])


def _read_plain(_mark: str, text: str, _tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
    name, _, arguments = text.partition(SEPARATOR)
    return _call(name.strip(), arguments)


def _call(name: str, text: str) -> list[ToolCall] | None:
    arguments = loaded(text)
    return [call(name, arguments)] if name and isinstance(arguments, dict) else None


def _group(mark: Mark, many: bool, separator: str) -> str:
    more = f" ({separator}{mark(BEGIN)} call {mark(END)})*" if many else ""
    return f"calls: {mark(GROUP)} {mark(BEGIN)} call {mark(END)}{more} {mark(GROUP_END)}"


def _fenced_rules(tools: Sequence[ToolSpec], mark: Mark, many: bool) -> str:
    def terms(tool: ToolSpec) -> str:
        name = quoted(tool.name + "\n```json\n")
        return f'"function" {mark(SEPARATOR)} {name} ARGUMENTS "\\n```"'

    return "\n".join([_group(mark, many, r"/\n/ "), by_tool(tools, terms)])


def _plain_rules(tools: Sequence[ToolSpec], mark: Mark, many: bool) -> str:
    calls = by_tool(tools, lambda tool: f"{quoted(tool.name)} {mark(SEPARATOR)} ARGUMENTS")
    return f"{_group(mark, many, '')}\n{calls}"


def _fenced_call(name: str, arguments: Any) -> str:
    fence = (mark(f"function{SEPARATOR}"), name, mark("\n```json\n"))
    return joined((*fence, json_text(arguments), mark("\n```")))


def _plain_call(name: str, arguments: Any) -> str:
    return joined((name, mark(SEPARATOR), json_text(arguments)))


DEEPSEEK_V3 = MarkedFormat(
    names=("deepseek_v3", "deepseekv3"),
    templates=((BEGIN, "```json"),),
    grammar=_fenced_rules,
    write=around(GROUP, each_call(BEGIN, _fenced_call, END, "\n"), GROUP_END),
    blocks=((BEGIN, END),),
    read=_read_fenced,
    silent=(GROUP, GROUP_END),
)
DEEPSEEK_V31 = MarkedFormat(
    names=("deepseek_v31", "deepseekv31"),
    templates=((BEGIN,),),
    grammar=_plain_rules,
    write=around(GROUP, each_call(BEGIN, _plain_call, END, ""), GROUP_END),
    blocks=((BEGIN, END),),
    read=_read_plain,
    silent=(GROUP, GROUP_END),
)
