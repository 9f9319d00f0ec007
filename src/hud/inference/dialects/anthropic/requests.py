"""A conversation as Anthropic's messages: blocks of text, pictures, calls and results.

A turn that Claude wrote goes back word for word, its signed thoughts included. Nothing here asks anybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from hud.inference.dialects.anthropic.tools import Declared
from hud.trace import ChatMessage

Block = dict[str, Any]

DIALECT = "messages"
_CACHED_MESSAGES = 2
"""User turns that end in a mark: the newest, to be read next time, and the one before, to be read now."""
_CACHED: dict[str, str] = {"type": "ephemeral"}


def system_blocks(messages: list[ChatMessage]) -> list[Block]:
    """Return the system messages that open the conversation; the last is a mark of the cache."""
    blocks = [
        block
        for message in messages[: _opening(messages)]
        for block in content_blocks(message["content"])
    ]
    if blocks:
        blocks[-1]["cache_control"] = _CACHED
    return blocks


def conversation(
    messages: list[ChatMessage], declared: Declared, *, citations: bool = False
) -> list[dict[str, Any]]:
    """Return the conversation after its opening system messages, user and assistant in turn.

    With `citations`, what functions answer are documents that Claude can cite.
    """
    turns: list[dict[str, Any]] = []
    results = _Results({}, citations)
    for message in messages[_opening(messages) :]:
        role = message["role"]
        if role == "tool":
            results.take(message)
            continue
        _add(turns, "user", results.blocks())
        if role == "assistant":
            blocks = _written(message, declared)
            _add(turns, "assistant", blocks)
            calls = {block["id"]: block for block in blocks if block["type"] == "tool_use"}
            results = _Results(calls, citations)
        else:
            results = _Results({}, citations)
            _add(turns, "user", content_blocks(message["content"]))
    _add(turns, "user", results.blocks())
    _mark(turns)
    return turns


def container_of(messages: list[ChatMessage]) -> str | None:
    """Return the container in which Claude last ran code, to have its files there again."""
    for message in reversed(messages):
        verbatim = message.get("verbatim")
        if verbatim and verbatim["dialect"] == DIALECT and verbatim.get("container"):
            return str(verbatim["container"])
    return None


def content_blocks(content: Any) -> list[Block]:
    """Return message content as blocks; the API takes no empty text."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return [
        _image(part["image_url"]["url"])
        if part["type"] == "image_url"
        else {"type": "text", "text": part["text"]}
        for part in content or []
        if part["type"] == "image_url" or part["text"]
    ]


class _Results:
    """What the calls of one turn came to, one result for each call."""

    def __init__(self, calls: dict[str, Block], citations: bool) -> None:
        self.calls = calls
        self.citations = citations
        self.answers: dict[str, list[ChatMessage]] = {}

    def take(self, message: ChatMessage) -> None:
        """Take an answer: of a call, or of one of the repetitions that a call stands for."""
        call_id = message["tool_call_id"]
        if call_id not in self.calls:
            call_id = call_id.rpartition(".")[0]
        self.answers.setdefault(call_id, []).append(message)

    def blocks(self) -> list[Block]:
        """Return the results in the order of the calls."""
        return [
            self._result(call, self.answers[call_id])
            for call_id, call in self.calls.items()
            if call_id in self.answers
        ]

    def _result(self, call: Block, answers: list[ChatMessage]) -> Block:
        result: Block = {"type": "tool_result", "tool_use_id": call["id"]}
        if call.get("toolset_name"):
            result["toolset_name"] = call["toolset_name"]
        failed = [message for message in answers if message.get("is_error")]
        content = content_blocks((failed or answers)[-1]["content"])
        if failed and all(block["type"] == "text" for block in content):
            # The API takes nothing but text in an error, and no error without a word.
            result["is_error"] = True
            content = content or [{"type": "text", "text": "(no message)"}]
        elif self.citations and not call.get("toolset_name"):
            content = [_citable(block, call["name"]) for block in content]
        if content:
            result["content"] = content
        return result


def _opening(messages: list[ChatMessage]) -> int:
    """Return how many system messages open the conversation."""
    for index, message in enumerate(messages):
        if message["role"] != "system":
            return index
    return len(messages)


def _add(turns: list[dict[str, Any]], role: str, blocks: Iterable[Block]) -> None:
    """Append blocks; the API wants the roles in turn, and no message without content."""
    blocks = list(blocks)
    if not blocks:
        return
    if turns and turns[-1]["role"] == role:
        turns[-1]["content"] = [*turns[-1]["content"], *blocks]
    else:
        turns.append({"role": role, "content": blocks})


def _written(message: ChatMessage, declared: Declared) -> list[Block]:
    """Return an assistant turn's blocks: Claude's own, or the same said anew."""
    verbatim = message.get("verbatim")
    if verbatim is not None and verbatim["dialect"] == DIALECT:
        own: list[Block] = verbatim["items"]
        return own
    blocks = content_blocks(message.get("content"))
    for call in message.get("tool_calls") or []:
        name = call["function"]["name"]
        blocks.append(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": declared.wire.get(name, name),
                "input": _object(call["function"]["arguments"]),
            }
        )
    return blocks


def _object(text: str) -> dict[str, Any]:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    return found if isinstance(found, dict) else {"arguments": text}


def _image(url: str) -> Block:
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def _citable(block: Block, title: str) -> Block:
    if block["type"] != "text":
        return block
    source = {"type": "text", "media_type": "text/plain", "data": block["text"]}
    return {
        "type": "document",
        "source": source,
        "title": title,
        "citations": {"enabled": True},
    }


def _mark(turns: list[dict[str, Any]]) -> None:
    """Mark where the cache may be written and read; thoughts cannot be marked, and stand in no user turn."""
    users = [turn for turn in turns if turn["role"] == "user"]
    for turn in users[-_CACHED_MESSAGES:]:
        *before, last = turn["content"]
        turn["content"] = [*before, {**last, "cache_control": _CACHED}]
