"""Order of a conversation's messages: which orders a chat template renders, and conversations rewritten into one of them.

Many templates refuse a system message that is not the first, or drop it; some refuse two user messages in a row, or one after
a tool's result. Such messages become parts of their neighbours. No rewriting crosses a turn of the assistant, so that the
prompt of a later turn extends that of an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hud.engine.chat.template_text import TemplateText
from hud.engine.chat.tool_calls.writing import mark
from hud.engine.chat.tool_prompt import Content, together
from hud.trace import ChatMessage

_USER, _ASSISTANT = mark("user"), mark("assistant")
_BETWEEN = mark("\n\n")
_NO_MESSAGE = mark("(no message)")
Probe = Callable[[list[ChatMessage]], str | None]
"""Render a conversation without rewriting; None: the template refuses it."""


@dataclass(frozen=True)
class MessageOrder:
    """Orders of messages in which a template renders every message's text, each after the one before.

    The defaults are those of a template that renders any order.
    """

    system: bool = True
    """A system message before the first user message, in every later prompt, too."""
    system_alone: bool = True
    """A system message without any other message."""
    leading_systems: bool = True
    """Several system messages before the first user message."""
    later_systems: bool = True
    """System messages after other messages."""
    adjacent_users: bool = True
    user_after_result: bool = True
    """A user message after a tool's result."""
    adjacent_assistants: bool = True
    assistant_first: bool = True
    """A turn of the assistant before any user message."""


def probed_order(probe: Probe, call: dict[str, Any] | None) -> MessageOrder:
    """Return the orders that a template renders.

    `call`: a tool call in the template's format; None: calls and their results are texts of the assistant and of users.
    """

    def renders(*roles: str) -> bool:
        talk: list[ChatMessage] = []
        for place, role in enumerate(roles):
            message: ChatMessage = {"role": mark(role), "content": f"probe{place}."}
            if role == "tool" and call is None:
                talk.append({"role": _ASSISTANT, "content": "calling"})
                message["role"] = _USER
            elif role == "tool" and call is not None:
                message |= {"tool_call_id": call["id"], "name": call["function"]["name"]}
                talk.append({"role": _ASSISTANT, "content": "", "tool_calls": [call]})
            talk.append(message)
        shown = probe(talk)
        if shown is None:
            return False
        starts = [shown.find(f"probe{place}.") for place in range(len(roles))]
        return starts[0] >= 0 and starts == sorted(starts)

    if not renders("user"):
        return MessageOrder()  # It renders conversations of its own kind alone.
    return MessageOrder(
        system=renders("system", "user")
        and renders("system", "user", "assistant", "user")
        and renders("system", "user", "tool"),
        system_alone=renders("system"),
        leading_systems=renders("system", "system", "user"),
        later_systems=renders("system", "user", "system")
        and renders("system", "user", "assistant", "system", "user")
        and renders("user", "tool", "system"),
        adjacent_users=renders("user", "user", "assistant", "user"),
        user_after_result=renders("user", "tool", "user"),
        adjacent_assistants=renders("user", "assistant", "assistant", "user"),
        assistant_first=renders("assistant", "user") and renders("system", "tool"),
    )


def in_order(messages: Sequence[ChatMessage], order: MessageOrder) -> list[ChatMessage]:
    """Return a conversation in an order that the template renders, with the text of every message."""
    opening = next(
        (place for place, message in enumerate(messages) if message["role"] != "system"),
        len(messages),
    )
    leading, rest = list(messages[:opening]), list(messages[opening:])
    if not rest and leading and not order.system_alone:
        rest = [_as_user(leading.pop())]
    if len(leading) > 1 and not order.leading_systems:
        leading = [_joined(leading)]
    if rest and rest[0]["role"] == "assistant" and not order.assistant_first:
        rest.insert(0, {"role": _USER, "content": _NO_MESSAGE})
    if leading and not order.system:
        # As the templates without system messages, Gemma's and older ones of Mistral, write them.
        contents = [message["content"] for message in leading]
        if rest[0]["role"] != "user":
            rest.insert(0, {"role": _USER, "content": _NO_MESSAGE})
        rest[0] = {**rest[0], "content": together(_BETWEEN, [*contents, rest[0]["content"]])}
        leading = []
    ordered = leading
    for spoken, run in groupby(rest, key=lambda message: message["role"] == "assistant"):
        adjacent = list(run)
        ordered += _turns(adjacent, order) if spoken else _run(adjacent, order)
    return ordered


def _turns(turns: list[ChatMessage], order: MessageOrder) -> list[ChatMessage]:
    """Return adjacent messages of the assistant; a turn with calls stays by itself."""
    if order.adjacent_assistants:
        return turns
    ordered: list[ChatMessage] = []
    for message in turns:
        if ordered and not ordered[-1].get("tool_calls"):
            ordered[-1] = {**message, "content": _joined([ordered[-1], message])["content"]}
        else:
            ordered.append(message)
    return ordered


def _run(messages: list[ChatMessage], order: MessageOrder) -> list[ChatMessage]:
    """Return the messages between two turns of the assistant."""
    ordered: list[ChatMessage] = []
    waiting: list[Content] = []
    for message in messages:
        if message["role"] == "system" and not order.later_systems:
            if ordered:
                ordered[-1] = _extended(ordered[-1], _marked(message))
            else:
                waiting.append(_marked(message))
            continue
        if waiting:
            if message["role"] == "user":
                message = {**message, "content": together(_BETWEEN, [*waiting, message["content"]])}
            else:
                ordered.append({"role": _USER, "content": together(_BETWEEN, waiting)})
            waiting = []
        before = ordered[-1]["role"] if ordered else None
        if message["role"] == "user" and before == "user" and not order.adjacent_users:
            ordered[-1] = _extended(ordered[-1], message["content"])
        elif message["role"] == "user" and before == "tool" and not order.user_after_result:
            ordered[-1] = _extended(ordered[-1], _marked(message))
        else:
            ordered.append(message)
    if waiting:
        ordered.append({"role": _USER, "content": together(_BETWEEN, waiting)})
    return ordered


def _as_user(message: ChatMessage) -> ChatMessage:
    return {**message, "role": _USER}


def _joined(messages: Sequence[ChatMessage]) -> ChatMessage:
    contents = [message["content"] for message in messages if message["content"]]
    return {**messages[0], "content": together(_BETWEEN, contents)}


def _extended(message: ChatMessage, content: Content) -> ChatMessage:
    return {**message, "content": together(_BETWEEN, [message["content"], content])}


def _marked(message: ChatMessage) -> Content:
    """Return a message's content between marks of its role, for a message of another role."""
    role: TemplateText = message["role"]
    return together(mark(""), [mark(f"<{role}>\n"), message["content"], mark(f"\n</{role}>")])
