"""Rewrites of a model's answer by a program: differences between the answer and the message that a later request has in its place.

Normalisations are undone, because they change nothing that the program's user or tools saw. Any other change is kept: the message
is then another text than the model's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hud import exact_json
from hud.inference.dialects.conversation_parts import images_in, text_in
from hud.trace import ChatMessage, ToolSpec, parsed_arguments

Rewrite = Literal[
    "thoughts", "white_space", "defaults", "text", "calls", "arguments", "conversation"
]
"""Kind of a rewrite. `conversation`: the message is the model's, what stands before it is not what it answered."""
NORMALISATIONS: frozenset[Rewrite] = frozenset({"thoughts", "white_space", "defaults"})
"""Thoughts dropped or exchanged, white space changed, arguments added or dropped that are null or the tool's defaults. A program may
also order arguments anew, and give calls other ids."""


def rewrites(
    answer: ChatMessage, message: ChatMessage, tools: Mapping[str, ToolSpec]
) -> set[Rewrite]:
    """Return the kinds of rewrites between an answer and the message in its place."""
    kinds: set[Rewrite] = set()
    if words(answer.get("reasoning_content")) != words(message.get("reasoning_content")):
        kinds.add("thoughts")
    if words(answer["content"]) != words(message["content"]):
        kinds.add("text")
    elif text_in(answer["content"]).strip() != text_in(message["content"]).strip():
        kinds.add("white_space")
    ours, theirs = _calls(answer), _calls(message)
    if [name for name, _ in ours] != [name for name, _ in theirs]:
        return {*kinds, "calls"}
    for (name, own), (_, sent) in zip(ours, theirs, strict=True):
        if _canonical(own) == _canonical(sent):
            continue
        parameters = tools[name].parameters if name in tools else {}
        equal = _canonical(_stated(own, parameters)) == _canonical(_stated(sent, parameters))
        kinds.add("defaults" if equal else "arguments")
    return kinds


def restored(answer: ChatMessage, message: ChatMessage) -> ChatMessage:
    """Return the answer, its calls with the ids that the program gave them."""
    calls = [
        {**own, "id": sent["id"]}
        for own, sent in zip(
            answer.get("tool_calls") or [], message.get("tool_calls") or [], strict=True
        )
    ]
    return {**answer, "tool_calls": calls} if calls else answer


def words(content: Any) -> str:
    """Return the text of message content with single spaces."""
    return " ".join(text_in(content).split())


def digest(*values: Any) -> str:
    """Return a digest of plain data."""
    written = exact_json.dumps(values, option=exact_json.OPT_SORT_KEYS)
    return hashlib.sha256(written).hexdigest()


def message_digest(message: ChatMessage) -> str:
    """Return a digest of what a message shows: its role, words, pictures and calls, without thoughts and ids."""
    calls = [[name, _canonical(arguments)] for name, arguments in _calls(message)]
    content = message["content"]
    pictures = [hashlib.sha256(url.encode()).hexdigest() for url in images_in(content)]
    return digest(message["role"], words(content), pictures, calls)


def _calls(message: ChatMessage) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in message.get("tool_calls") or []]
    return [(function["name"], parsed_arguments(function["arguments"])) for function in functions]


def _stated(arguments: Any, schema: Mapping[str, Any]) -> Any:
    """Return arguments without those that are null or a default of the tool's schema."""
    if not isinstance(arguments, dict):
        return arguments
    properties = schema.get("properties")
    fields = properties if isinstance(properties, dict) else {}
    defaults = {
        name: _canonical(field["default"])
        for name, field in fields.items()
        if isinstance(field, dict) and "default" in field
    }
    return {
        name: value
        for name, value in arguments.items()
        if value is not None and (name not in defaults or _canonical(value) != defaults[name])
    }


def _canonical(value: Any) -> str:
    """Return plain data as text: equal for objects in another order, and for 1 and 1.0, which JavaScript writes alike."""
    return exact_json.dumps(_whole_numbers(value), option=exact_json.OPT_SORT_KEYS).decode()


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _whole_numbers(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_whole_numbers(item) for item in value]
    return value
