"""Messages of chat completions, read, and written by the dialect's documentation.

The common conversation has the form of chat completions. Third-party servers differ in two ways: a tool message contains
text only, so that images follow in a user message, and function names have a limited character set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hud.errors import UsageError
from hud.inference.dialects.conversation_parts import image_part, join_parts, text_in
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.tool_calls import with_call_ids
from hud.trace import ChatMessage, call_message, wire_messages

DIALECT = "chat_completions"
LONGEST_ID = 40
"""Most characters of a call's id in OpenAI's API."""
MISTRAL_ID = 9
"""Length of a call's id for Mistral's models: their servers refuse others, and so do vLLM and templates of theirs."""
_MISTRAL = re.compile(r"mistral|mixtral|ministral|magistral|codestral|devstral|pixtral|voxtral")
SEEN = "The pictures that {} answered with:"
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def documented_messages(
    messages: list[ChatMessage], names: Mapping[str, str], model: str = ""
) -> list[ChatMessage]:
    """Return the messages to send to `model`; `names` maps function names to those of the request."""
    length = MISTRAL_ID if _MISTRAL.search(model.lower()) else None
    written: list[ChatMessage] = []
    pictures: list[dict[str, Any]] = []
    called: dict[str, str] = {}
    for message in with_call_ids(wire_messages(messages), DIALECT, LONGEST_ID, length=length):
        if message["role"] != "tool" and pictures:
            # After the last result: no message may be between the results of a turn's calls.
            written.append({"role": "user", "content": pictures})
            pictures = []
        if message.get("tool_calls"):
            calls = [_renamed(call, names) for call in message["tool_calls"]]
            called |= {call["id"]: call["function"]["name"] for call in calls}
            message = {**message, "tool_calls": calls}
        elif message["role"] == "tool" and isinstance(message["content"], list):
            parts = message["content"]
            seen = [part for part in parts if part["type"] == "image_url"]
            name = called.get(message["tool_call_id"], "a tool")
            pictures += [{"type": "text", "text": SEEN.format(name)}, *seen] if seen else []
            message = {**message, "content": text_in(parts) or "(a picture, below)"}
        written.append(message)
    if pictures:
        written.append({"role": "user", "content": pictures})
    return written


def _renamed(call: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "name": names.get(function["name"], function["name"])}}


def read_message(message: Fields) -> ChatMessage:
    """Return a validated message, without provider-specific fields. Raises `UsageError` for an invalid one."""
    role = _ROLES.get(message.needed_text("role"))
    if role is None:
        raise message.wrong("role", f"one of {', '.join(_ROLES)}")
    read: ChatMessage = {"role": role, "content": _read_content(message)}
    if role == "assistant":
        calls = [_read_call(call) for call in message.objects("tool_calls")]
        if calls:
            read["tool_calls"] = calls
        reasoning = message.text("reasoning_content", "reasoning")
        if reasoning:
            read["reasoning_content"] = reasoning
    elif read["content"] is None:
        raise UsageError(f"{message.place('content')} is missing.")
    if role == "tool":
        read["tool_call_id"] = message.needed_text("tool_call_id")
    return read


def _read_content(message: Fields) -> Any:
    """Return content as one text, or with images as a list of parts."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content
    return join_parts([_read_part(part) for part in message.objects("content")])


def _read_part(part: Fields) -> dict[str, Any]:
    kind = part.needed_text("type")
    if kind in ("text", "input_text", "output_text"):
        return {"type": "text", "text": part.text("text") or ""}
    if kind == "refusal":
        return {"type": "text", "text": part.text("refusal") or ""}
    if kind == "image_url":
        image = part.get("image_url")
        if isinstance(image, str):
            return image_part(image)
        return image_part(Fields(image, part.place("image_url")).needed_text("url"))
    raise part.unsupported("content")


def _read_call(call: Fields) -> dict[str, Any]:
    function = call.inner("function")
    if function is None:
        raise UsageError(f"{call.place('function')} is missing; only function calls are supported.")
    return call_message(
        call.text("id") or "", function.needed_text("name"), function.text("arguments") or "{}"
    )
