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
from hud.inference.dialects.request import GenerationRequest
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
    call_message,
    now,
    parsed_arguments,
)
from hud.trace.recording.journal import encode_step
from hud.trace.sampled.call_samples import MODEL_CALL
from hud_platform.gateway.answer_rewrites import digest
from hud_platform.gateway.sealed_thoughts import turn_name
from hud_platform.gateway.turn_index import Key, ReadConversation, TurnIndex


@dataclass
class RunConversation:
    """Turns of a run so far, and the tool calls in them without a result."""

    turns: TurnIndex = field(default_factory=TurnIndex)
    unanswered: dict[str, tuple[ToolCall, datetime]] = field(default_factory=dict)
    """Tool calls without a result, with the end of their turn, by id."""

    def read(self, request: GenerationRequest) -> ReadConversation:
        """Return the conversation of a request."""
        if request.prompts is not None:
            prompts = [
                list(prompt) if isinstance(prompt, list) else prompt for prompt in request.prompts
            ]
            return ReadConversation([], digest(prompts), None, None, frozenset())
        effort = request.sampling.reasoning_effort or request.budgeted_effort
        return self.turns.read(request.messages, request.offered, effort)

    def add(self, step: AgentStep, *, continued: Key | None = None) -> None:
        """Add the answer of a call. `continued`: the turn that its prompt was to continue."""
        end = step.ended_at or now()
        self.unanswered |= {call.id: (call, end) for call in step.tool_calls}
        call, sample = step.extra[MODEL_CALL], step.sample
        if call["conversation"] is None:
            return
        self.turns.add(
            (call["number"], call["choice"]),
            call["conversation"],
            _answer_message(step),
            None if sample is None else sample.prompt_token_ids + sample.output_token_ids,
            continued=continued,
            sealed=turn_name(call["response"], call["choice"]),
        )

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

    def packed_sample(self, sample: Sample, continued: Key | None) -> dict[str, Any]:
        """Return a sample as plain data, its prompt as the difference to the turn that it continues."""
        packed = sample.model_dump(mode="json")
        shared = self.turns.shared(continued, sample.prompt_token_ids)
        if shared:
            packed["prompt_token_ids"] = sample.prompt_token_ids[shared:]
            packed["extends"] = continued
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


def request_digest(body: dict[str, Any]) -> str:
    """Return the digest of a request's body: equal for a repetition, also where that is not streamed."""
    content = {name: value for name, value in body.items() if not name.startswith("stream")}
    written = exact_json.dumps(content, option=exact_json.OPT_SORT_KEYS)
    return hashlib.sha256(written).hexdigest()


def _answer_message(step: AgentStep) -> ChatMessage:
    """Return the answer in a step as a message of the conversation."""
    message: ChatMessage = {"role": "assistant", "content": step.content or ""}
    if step.reasoning:
        message["reasoning_content"] = step.reasoning
    calls = [call_message(call.id, call.name, call.arguments_text) for call in step.tool_calls]
    return {**message, "tool_calls": calls} if calls else message


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
