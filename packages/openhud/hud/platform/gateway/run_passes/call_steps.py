"""Steps of a run in its model calls: agent steps of answers, and tool steps of the results that the next request carries."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hud import exact_json
from hud.inference.dialects.conversation_parts import images_in, inline_image, text_in
from hud.inference.dialects.events import Turn
from hud.inference.dialects.tool_calls import MALFORMED
from hud.trace import (
    AgentStep,
    ChatMessage,
    ContentBlock,
    ImageContent,
    Sample,
    TextContent,
    ToolCall,
    ToolResult,
    ToolStep,
    now,
    parsed_arguments,
)
from hud.trace.recording.journal import encode_step
from hud.trace.sampled.token_columns import added_prompt

MOST_OPEN_PREFIXES = 64
"""Sampled turns of a run that a later prompt is compared with."""


@dataclass(frozen=True)
class Answer:
    """Answer of an earlier call, by which later requests refer to it."""

    number: int
    choice: int
    calls: dict[str, ToolCall]
    """Tool calls by id."""
    text: str
    """Digest of the visible text; empty without one."""
    ended_at: datetime


@dataclass
class RunConversation:
    """Answers of a run so far, and the tool calls in them without a result."""

    answers: list[Answer] = field(default_factory=list)
    unanswered: dict[str, tuple[ToolCall, datetime]] = field(default_factory=dict)
    """Tool calls without a result, with the end of their turn, by id."""
    prefixes: list[tuple[int, int, list[int]]] = field(default_factory=list)
    """Number, choice and ids (prompt and output) of sampled turns, oldest first."""

    def add(self, number: int, step: AgentStep, choice: int) -> None:
        """Add the answer of a call."""
        end = step.ended_at or now()
        calls = {call.id: call for call in step.tool_calls}
        self.answers.append(Answer(number, choice, calls, text_digest(step.content or ""), end))
        self.unanswered |= {call.id: (call, end) for call in step.tool_calls}
        if step.sample is not None:
            ids = step.sample.prompt_token_ids + step.sample.output_token_ids
            self.prefixes = [*self.prefixes, (number, choice, ids)][-MOST_OPEN_PREFIXES:]

    def results(self, messages: Sequence[ChatMessage]) -> list[ToolStep]:
        """Return the tool steps of results that stand in a request for the first time."""
        steps = []
        for message in messages:
            if message["role"] != "tool" or message["tool_call_id"] not in self.unanswered:
                continue
            call, started = self.unanswered.pop(message["tool_call_id"])
            result = _tool_result(message)
            steps.append(ToolStep(call=call, result=result, started_at=started, ended_at=now()))
        return steps

    def continued(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the numbers of the calls whose answers stand in a request."""
        ids, texts = set(), set()
        for message in messages:
            if message["role"] == "assistant":
                ids |= {call["id"] for call in message.get("tool_calls") or []}
                texts.add(text_digest(text_in(message.get("content"))))
        texts.discard("")
        return [
            answer.number
            for answer in self.answers
            if (ids & answer.calls.keys() if answer.calls else answer.text in texts)
        ]

    def packed_sample(self, sample: Sample) -> dict[str, Any]:
        """Return a sample as plain data, its prompt as the difference to the longest earlier turn that it extends."""
        packed = sample.model_dump(mode="json")
        best: tuple[int, int, list[int]] | None = None
        for prefix in self.prefixes:
            longer = best is None or len(prefix[2]) > len(best[2])
            if longer and added_prompt(prefix[2], sample.prompt_token_ids) is not None:
                best = prefix
        if best is not None:
            packed["prompt_token_ids"] = sample.prompt_token_ids[len(best[2]) :]
            packed["extends"] = [best[0], best[1]]
        return packed


def agent_step(turn: Turn, model: str, started: datetime, extra: dict[str, Any]) -> AgentStep:
    """Return the step of a turn."""
    finished = turn.finished
    calls = [
        ToolCall(id=call.id, name=call.name, arguments=parsed_arguments(call.arguments))
        for call in turn.calls
        if call.complete
    ]
    return AgentStep(
        content=turn.text or None,
        reasoning=turn.reasoning or None,
        tool_calls=calls,
        finish_reason=MALFORMED if finished.malformed else finished.reason,
        refusal=finished.refusal,
        model=model,
        usage=finished.usage.model_copy(),
        sample=finished.sample,
        started_at=started,
        ended_at=now(),
        extra=extra,
    )


def packed_step(step: AgentStep | ToolStep, sample: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a step as plain data, with a sample of `RunConversation.packed_sample`."""
    packed: dict[str, Any] = exact_json.loads(encode_step(step))
    return packed if sample is None else {**packed, "sample": sample}


def text_digest(text: str) -> str:
    """Return a digest of a text without its white space; empty for no text."""
    visible = "".join(text.split())
    return hashlib.sha256(visible.encode("utf-8", "replace")).hexdigest() if visible else ""


def request_digest(body: dict[str, Any]) -> str:
    """Return the digest of a request's body: equal for a repetition, also where that is not streamed."""
    content = {name: value for name, value in body.items() if not name.startswith("stream")}
    written = exact_json.dumps(content, option=exact_json.OPT_SORT_KEYS)
    return hashlib.sha256(written).hexdigest()


def _tool_result(message: ChatMessage) -> ToolResult:
    content = message.get("content")
    blocks: list[ContentBlock] = []
    if text := text_in(content):
        blocks.append(TextContent(text=text))
    if not isinstance(content, str):
        for url in images_in(content):
            image = inline_image(url)
            if image is not None:
                blocks.append(ImageContent(data=image[1], mime_type=image[0]))
    return ToolResult(content=blocks, is_error=bool(message.get("is_error")))
