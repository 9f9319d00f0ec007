"""Conversations: calls of models, linked by the messages that they repeat, as runs.

A call that repeats all messages of an earlier conversation continues it; any other begins one of its own. So a compaction, an edit
of the history, a subagent and a side call are conversations by themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hud import exact_json
from hud.exchange import ForeignRun
from hud.exchange.supervision import WEIGHT
from hud.inference.dialects.conversation_parts import inline_image, text_in
from hud.trace import ChatMessage
from hud.trace.content import (
    ContentBlock,
    ImageContent,
    Message,
    TextContent,
    ToolCall,
    ToolResult,
    parsed_arguments,
)
from hud.trace.recorded_time import now
from hud.trace.steps import AgentStep, Step, ToolStep, Trace, Usage


@dataclass(kw_only=True)
class ModelCall:
    """One request to a model, and its answer."""

    id: str
    """Unique in the source."""
    messages: Sequence[ChatMessage]
    answer: ChatMessage
    model: str | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: str | None = None
    reward: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """Further data of the conversation that this call begins."""


@dataclass
class Conversation:
    """A conversation in the making."""

    id: str
    extra: dict[str, Any]
    trace: Trace = field(default_factory=Trace)
    end: bytes = b""
    """Digest of all of its messages."""
    model: str | None = None
    reward: float | None = None
    error: str | None = None
    _calls: dict[str, ToolCall] = field(default_factory=dict)

    def add(self, messages: Sequence[ChatMessage], at: datetime) -> None:
        """Append messages of a request."""
        for message in messages:
            if message["role"] == "assistant":
                self.answer(message, started_at=at, ended_at=at)
            elif message["role"] == "tool":
                self._add_result(message, at)
            else:
                self._say(message, at)

    def answer(self, message: ChatMessage, **fields: Any) -> None:
        """Append a turn of the model."""
        calls = [_call(number, call) for number, call in enumerate(message.get("tool_calls") or [])]
        if message.get(WEIGHT) == 0:
            fields["extra"] = {WEIGHT: 0}
        self._calls = {call.id: call for call in calls}
        self.trace.record(
            AgentStep(
                content=text_in(message["content"]) or None,
                reasoning=message.get("reasoning_content"),
                tool_calls=calls,
                done=not calls,
                **fields,
            )
        )

    def run(self, **fields: Any) -> ForeignRun:
        """Return the conversation as a run; `fields` go before those of the calls."""
        last = next((step for step in self.trace.steps[::-1] if isinstance(step, AgentStep)), None)
        values: dict[str, Any] = {
            "foreign_id": self.id,
            "model": self.model,
            "content": None if last is None else last.content,
            "reward": self.reward,
            "error": self.error,
            "status": "completed" if self.error is None else "error",
            "failure_kind": None if self.error is None else "infrastructure",
            "extra": self.extra or None,
        }
        return ForeignRun(steps=self.trace.steps, **{**values, **fields})

    def _say(self, message: ChatMessage, at: datetime) -> None:
        role = "system" if message["role"] == "system" else "user"
        spoken = Message(role=role, content=_blocks(message["content"]))
        last = self.trace.steps[-1] if self.trace.steps else None
        if type(last) is Step and last.source == "user":
            last.messages = [*last.messages, spoken]
        else:
            self.trace.record(Step(source="user", messages=[spoken], started_at=at, ended_at=at))

    def _add_result(self, message: ChatMessage, at: datetime) -> None:
        identifier = message.get("tool_call_id", "")
        call = self._calls.get(identifier)
        if call is None:  # Results without ids answer the calls in their order.
            waiting = list(self._calls.values()) if not identifier else []
            answered = sum(isinstance(step, ToolStep) for step in self.trace.steps[-len(waiting) :])
            name = str(message.get("name") or "tool")
            call = (
                waiting[answered] if answered < len(waiting) else ToolCall(id=identifier, name=name)
            )
        content = _blocks(message["content"])
        blocks = [TextContent(text=content)] if isinstance(content, str) else content
        result = ToolResult(content=blocks, isError=bool(message.get("is_error")))
        self.trace.record(ToolStep(call=call, result=result, started_at=at, ended_at=at))


class Conversations:
    """Calls of one log, in their order, as conversations."""

    def __init__(self) -> None:
        self.all: list[Conversation] = []
        self._ends: dict[bytes, Conversation] = {}
        self._digests: dict[int, tuple[ChatMessage, bytes]] = {}
        """By identity, with the message, which keeps its identity from another."""

    def add(self, call: ModelCall) -> Conversation:
        """Add a call to the conversation that it continues, or to a new one."""
        digests = list(self._running(call.messages))
        at = call.started_at or call.ended_at or now()
        for length in range(len(digests), 0, -1):
            conversation = self._ends.get(digests[length - 1])
            if conversation is not None and conversation.end == digests[length - 1]:
                break
        else:
            length, conversation = 0, Conversation(call.id, dict(call.extra))
            self.all.append(conversation)
        conversation.add(call.messages[length:], at)
        ended = call.ended_at or at
        conversation.answer(
            call.answer,
            model=call.model,
            usage=call.usage,
            finish_reason=call.finish_reason,
            error=call.error,
            started_at=at,
            ended_at=max(at, ended),
        )
        conversation.model = call.model or conversation.model
        conversation.error = call.error
        if call.reward is not None:
            conversation.reward = call.reward
        conversation.end = self._next(digests[-1] if digests else b"", call.answer)
        self._ends[conversation.end] = conversation
        return conversation

    def _running(self, messages: Iterable[ChatMessage]) -> Iterator[bytes]:
        """Yield the digest of each beginning of a conversation."""
        digest = b""
        for message in messages:
            digest = self._next(digest, message)
            yield digest

    def _next(self, before: bytes, message: ChatMessage) -> bytes:
        held = self._digests.get(id(message))
        if held is None:
            held = self._digests[id(message)] = message, _digest(message)
        return hashlib.sha256(before + held[1]).digest()


def _digest(message: ChatMessage) -> bytes:
    """Return the digest of what a message shows: programs send it again without thoughts, and trimmed."""
    calls = [
        (call["function"]["name"], parsed_arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]
    content = message["content"]
    shown = content.strip() if isinstance(content, str) else content
    value = [message["role"], shown or "", calls]
    return hashlib.sha256(exact_json.dumps(value, option=exact_json.OPT_SORT_KEYS)).digest()


def _call(number: int, call: dict[str, Any]) -> ToolCall:
    function = call["function"]
    arguments = parsed_arguments(function["arguments"])
    return ToolCall(id=call["id"] or f"call_{number}", name=function["name"], arguments=arguments)


def _blocks(content: Any) -> str | list[ContentBlock]:
    """Return content as blocks of a trace; pictures at addresses become their addresses."""
    if isinstance(content, str):
        return content
    blocks: list[ContentBlock] = []
    for block in content:
        if block["type"] == "text":
            blocks.append(TextContent(text=block["text"]))
            continue
        url = block["image_url"]["url"]
        picture = inline_image(url)
        blocks.append(
            TextContent(text=f"[image {url}]")
            if picture is None
            else ImageContent(mime_type=picture[0], data=picture[1])
        )
    return blocks
