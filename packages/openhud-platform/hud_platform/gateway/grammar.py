"""Grammars for requests that force a tool call or JSON, in llguidance's Lark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud import exact_json
from hud.engine.chat.tool_calls.json_calls import json_rule
from hud.inference.dialects.request import GenerationRequest, OutputFormat

if TYPE_CHECKING:
    from hud.engine.chat.chat_format import ChatFormat


def grammar_of(chat: ChatFormat, request: GenerationRequest, *, opened: bool) -> str | None:
    """Return the grammar of a request's output; None if the output is unconstrained.
    `opened`: the prompt ends inside reasoning, which stays unconstrained.
    """
    format = chat.tool_format

    def mark(text: str) -> str:
        return _mark(chat, text)

    answer = ""
    if request.format is not None:
        answer = f"json: {format.preamble(mark)} object\nobject: {_form(request.format)}"
    if request.tool_choice.mode == "required":
        rules = "answer: calls\n" + _calls(chat, request)
    elif request.format is not None and not request.offered:
        rules = f"answer: json\n{answer}"
    elif request.format is not None:
        # With tools, the model either calls them or answers in the JSON form.
        rules = f"answer: json | calls\n{answer}\n{_calls(chat, request)}"
    else:
        return None
    thinking = f"/(.|\\n)*/ {mark(format.thinking[1])} /\\n*/ " if opened else ""
    return f"start: {thinking}answer\n{rules}\n"


def _form(format: OutputFormat) -> str:
    """Return the rule of a response's form."""
    if format.words:
        return " | ".join(exact_json.dumps(word).decode() for word in format.words)
    return json_rule(format.schema or {"type": "object"})


def _calls(chat: ChatFormat, request: GenerationRequest) -> str:
    names = request.tool_choice.names
    allowed = [tool for tool in request.offered if not names or tool.name in names]
    many = request.parallel_calls and not names
    return chat.tool_format.grammar(allowed, lambda text: _mark(chat, text), many)


def _mark(chat: ChatFormat, text: str) -> str:
    """Return a mark in Lark: a special token if the tokenizer has one, else plain text."""
    token = chat.tokenizer.token_to_id(text)
    return exact_json.dumps(text).decode() if token is None else f"<[{token}]>"
