"""What must be written, where a request leaves no choice: tool calls, or JSON. Grammars are llguidance's Lark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from hud.platform.gateway.requests import GenerationRequest
from hud.platform.gateway.turns import CALL, CALLED, THOUGHT

if TYPE_CHECKING:
    from hud.engine.chat import ChatFormat
    from hud.trace import ToolSpec

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As tool calls are shown to models; a weak model that may write white space writes nothing else."""


def grammar_of(chat: ChatFormat, request: GenerationRequest, *, opened: bool) -> str | None:
    """Return the grammar of a request's answer, None where anything may be written.

    `opened`: the prompt ends inside `<think>`, and thinking stays free.
    """
    if request.tool_choice.mode == "required":
        rules = _calls(chat, request)
    elif request.format is not None and not request.offered:
        rules = f"answer: %json {_json(request.format.schema or {'type': 'object'})}"
    elif request.format is not None:
        # With tools about, the model calls them or answers in the form.
        form = _json(request.format.schema or {"type": "object"})
        rules = f"answer: json | calls\njson: %json {form}\n" + _calls(chat, request).replace(
            "answer:", "calls:", 1
        )
    else:
        return None
    thinking = f"/(.|\\n)*/ {_mark(chat, THOUGHT)} /\\n*/ " if opened else ""
    return f"start: {thinking}answer\n{rules}\n"


def _calls(chat: ChatFormat, request: GenerationRequest) -> str:
    names = request.tool_choice.names
    allowed = [tool for tool in request.offered if not names or tool.name in names]
    many = "+" if request.parallel_calls and not names else ""
    call = f"{_mark(chat, CALL)} /\\n?/ object /\\n?/ {_mark(chat, CALLED)}"
    return f"answer: call{many}\ncall: {call}\nobject: %json {_json(_call_schema(allowed))}"


def _call_schema(tools: list[ToolSpec]) -> dict[str, Any]:
    described = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                "arguments": {"type": "object", **tool.parameters},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return described[0] if len(described) == 1 else {"anyOf": described}


def _json(schema: dict[str, Any]) -> str:
    return orjson.dumps({**schema, "x-guidance": _COMPACT}).decode()


def _mark(chat: ChatFormat, text: str) -> str:
    """Return a mark as the tokenizer has it: one token of its own, or plain text."""
    token = chat.tokenizer.token_to_id(text)
    return orjson.dumps(text).decode() if token is None else f"<[{token}]>"
