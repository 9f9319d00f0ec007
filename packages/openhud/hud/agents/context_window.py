"""Removal of images from a conversation that exceeds the context window.

Screenshots are most of a long conversation and soon outdated, so the oldest are removed first; images of the prompt and
the newest screenshot stay.
"""

from __future__ import annotations

from typing import Any

from hud.trace import ChatMessage

DROPPED = "[An earlier picture was left out here: the conversation had grown too long.]"


def drop_oldest_images(messages: list[ChatMessage]) -> int:
    """Replace the older half of the images in tool results by a note; returns their number.

    Half of them instead of one, since each change of an early message invalidates a provider's prompt cache.
    """
    shown = sum(_pictures(message) for message in messages)
    left = dropped = shown // 2
    for index, message in enumerate(messages):
        if left and _pictures(message):
            content = []
            for part in message["content"]:
                if part["type"] == "image_url" and left:
                    part, left = {"type": "text", "text": DROPPED}, left - 1
                content.append(part)
            messages[index] = {**message, "content": content}
    return dropped


def _pictures(message: ChatMessage) -> int:
    content: Any = message.get("content")
    if message["role"] != "tool" or not isinstance(content, list):
        return 0
    return sum(part["type"] == "image_url" for part in content)
