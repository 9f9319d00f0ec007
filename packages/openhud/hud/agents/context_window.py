"""Texts and message lists for a conversation that exceeds the context window; `tool_loop` applies them.

Screenshots are most of a long conversation and soon outdated, so the oldest are removed first; images of the prompt and
the newest screenshot stay. A summary replaces every turn; the prompt stays.
"""

from __future__ import annotations

from typing import Any, Literal

from hud.agents.chat_messages import user_message
from hud.trace import ChatMessage

ContextPolicy = Literal["stop", "drop_images", "compact"]

DROPPED = "[An earlier picture was left out here: the conversation had grown too long.]"
SUMMARIZE = (
    "This conversation is about to be cut: it has grown too long. Write a summary for yourself, with all that is needed to "
    "finish the task: results, decisions, and the next steps. Call no tool."
)
SUMMARY = "The conversation so far was cut here. Your summary of it:\n\n{summary}"
LOST = "\n\nThe summary lacks the last {count} of your turns, which did not fit. Their tool calls were executed."
COMPACTION = "compaction"
"""Key of a step's `extra`, and of a trace's (their number): the turn is a summary that replaces the conversation before it."""


def check_compaction(policy: ContextPolicy, at: int | None, model: str | None) -> None:
    """Raise `ValueError` for settings of compaction without it, and for compaction without its threshold."""
    if policy == "compact" and at is None:
        raise ValueError("context_policy='compact' needs compact_at, a number of tokens")
    if policy != "compact" and (at is not None or model is not None):
        raise ValueError("compact_at and compact_model need context_policy='compact'")


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


def without_last_turn(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Return a conversation up to its last turn of the assistant; it must have one."""
    last = max(place for place, message in enumerate(messages) if message["role"] == "assistant")
    return messages[:last]


def with_text(messages: list[ChatMessage], text: str) -> list[ChatMessage]:
    """Return a conversation that ends with this text of the user, in one message with what the user said before.

    Chat templates may refuse two messages of the user in a row.
    """
    if not messages or messages[-1]["role"] != "user":
        return [*messages, user_message(text)]
    content: Any = messages[-1]["content"]
    if isinstance(content, str):
        return [*messages[:-1], user_message(f"{content}\n\n{text}")]
    return [*messages[:-1], {"role": "user", "content": [*content, {"type": "text", "text": text}]}]


def _pictures(message: ChatMessage) -> int:
    content: Any = message.get("content")
    if message["role"] != "tool" or not isinstance(content, list):
        return 0
    return sum(part["type"] == "image_url" for part in content)
