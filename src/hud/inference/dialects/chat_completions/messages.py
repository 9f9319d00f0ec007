"""Our chat messages as the documentation of chat completions has them, for servers that are not ours.

Two things differ. A tool's answer may hold text alone there, so pictures follow in a message of the user's; and names
of functions have few characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hud.trace import ChatMessage, wire_messages

SEEN = "The pictures that {} answered with:"


def documented_messages(messages: list[ChatMessage], names: Mapping[str, str]) -> list[ChatMessage]:
    """Return the messages to send; `names` has the functions' names on the wire by our own."""
    written: list[ChatMessage] = []
    pictures: list[dict[str, Any]] = []
    called: dict[str, str] = {}
    for message in wire_messages(messages):
        if message["role"] != "tool" and pictures:
            # After the last answer: nothing may come between the answers to one turn's calls.
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
            texts = [part["text"] for part in parts if part["type"] == "text"]
            message = {**message, "content": "\n".join(texts) or "(a picture, below)"}
        written.append(message)
    if pictures:
        written.append({"role": "user", "content": pictures})
    return written


def _renamed(call: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "name": names.get(function["name"], function["name"])}}
