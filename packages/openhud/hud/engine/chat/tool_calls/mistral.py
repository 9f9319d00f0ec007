"""Mistral: `[TOOL_CALLS]` and a JSON list of calls, or since 2025 `[TOOL_CALLS]NAME[ARGS]{...}` for each call.

Ids are 9 letters or digits; the templates reject others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from hud.engine.chat.tool_calls.format import Mark
from hud.engine.chat.tool_calls.json_calls import (
    by_tool,
    call,
    call_of,
    call_schema,
    json_rule,
    loaded,
    quoted,
)
from hud.engine.chat.tool_calls.marked import MarkedFormat
from hud.engine.chat.tool_calls.writing import around, listed_calls
from hud.trace import ToolCall, ToolSpec

BEGIN, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_ID = re.compile(r"[A-Za-z0-9]{9}")
_NAMED = re.compile(
    r"\s*([^\s\[\]{}]+?)\s*(?:\[CALL_ID\]\s*([^\s\[\]]*)\s*)?(?:\[ARGS\])?\s*(?=\{)"
)


def call_id(id: str) -> str:
    """Return an id of 9 letters or digits: the given one, or one that is derived from it."""
    return (
        id if _ID.fullmatch(id) else hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()[:9]
    )


def _read(_mark: str, text: str, _tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
    calls: list[ToolCall | None]
    named = _NAMED.match(text)
    if named is not None:
        arguments = loaded(text[named.end() :])
        calls = [call(named[1], arguments)] if isinstance(arguments, dict) else [None]
        ids = [named[2]]
    else:
        values = loaded(text)
        if not isinstance(values, list) or not values:
            return None
        calls = [call_of(value) for value in values]
        ids = [value.get("id") if isinstance(value, dict) else None for value in values]
    identified = []
    for parsed, id in zip(calls, ids, strict=True):
        if parsed is None:
            return None
        own = id if isinstance(id, str) and _ID.fullmatch(id) else call_id(parsed.id)
        identified.append(parsed.model_copy(update={"id": own}))
    return identified


def _rules(tools: Sequence[ToolSpec], mark: Mark, many: bool) -> str:
    if mark(ARGS) != quoted(ARGS):
        rule = f"{mark(BEGIN)} call"
        calls = by_tool(tools, lambda tool: f"{quoted(tool.name)} {mark(ARGS)} ARGUMENTS")
        return f"calls: ({rule}){'+' if many else ''}\n{calls}"
    listed = {"type": "array", "items": call_schema(tools), "minItems": 1}
    if not many:
        listed["maxItems"] = 1
    return f"calls: {mark(BEGIN)} {json_rule(listed)}"


MISTRAL = MarkedFormat(
    names=("mistral",),
    templates=((BEGIN,),),
    grammar=_rules,
    write=around(BEGIN, listed_calls, ""),
    blocks=((BEGIN, None),),
    read=_read,
    thinking=("[THINK]", "[/THINK]"),
    call_id=call_id,
)
