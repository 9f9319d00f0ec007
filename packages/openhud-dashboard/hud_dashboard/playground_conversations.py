"""Conversations of the playground that a person rated: runs of the source `playground`, with the outcome `thumb`.

A conversation that nobody rates is kept nowhere. A rated one has no token ids: it serves supervised training and judging.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, Field

from hud.errors import UsageError
from hud.exchange.foreign_runs import ForeignJob, ForeignRun, job_id_of
from hud.exchange.redaction import Redaction
from hud.exchange.run_import import ImportedLines
from hud.trace import AgentStep, Message, Step, ToolCall, ToolResult, ToolStep, Trace, is_id, plain
from hud.trace.content import parsed_arguments
from hud.trace.limits import check_answer
from hud_platform.store import Store, outcomes
from hud_platform.store.ingest import ingest
from hud_platform.store.source_policies import policy_of

SOURCE = "playground"
THUMB = "thumb"
"""Name of the outcome: 1 for a thumb up, 0 for one down."""
MOST_MESSAGES = 1_000
LONGEST_TEXT = 1_000_000


class _Function(BaseModel):
    name: str = Field(max_length=1_000)
    arguments: str = Field(default="", max_length=LONGEST_TEXT)


class _Call(BaseModel):
    id: str = Field(max_length=1_000)
    function: _Function


class ChatTurn(BaseModel):
    """A message of chat completions."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = Field(default=None, max_length=LONGEST_TEXT)
    tool_calls: list[_Call] = Field(default_factory=list, max_length=1_000)
    tool_call_id: str | None = Field(default=None, max_length=1_000)


class RatedConversation(BaseModel, extra="forbid"):
    """A conversation up to the rated answer."""

    id: str
    """32 hexadecimal digits, made by the page."""
    model: str = Field(max_length=1_000)
    checkpoint: str | None = Field(default=None, max_length=200)
    messages: list[ChatTurn] = Field(min_length=1, max_length=MOST_MESSAGES)
    up: bool


def record_rating(
    store: Store, team: str, owner: str | None, rater: str, rated: RatedConversation
) -> dict[str, Any]:
    """Store a rated conversation as a run; a later rating adds what was said since. Returns the outcome.

    Raises `UsageError` for a conversation that does not end with an answer.
    """
    if not is_id(rated.id):
        raise UsageError("The id of a conversation is 32 hexadecimal digits.")
    if rated.messages[-1].role != "assistant":
        raise UsageError("A rating is of an answer: the conversation must end with one.")
    job = ForeignJob(id=job_id_of(SOURCE, team), name="Playground")
    trace = _trace(rated)
    run = ForeignRun(
        # Of this person's alone: nobody can add to the conversation of another.
        foreign_id=f"{SOURCE}:{team}:{owner}:{plain(rated.id)}",
        steps=trace.steps,
        model=rated.model,
        content=trace.content,
        extra={"pinned_checkpoint": rated.checkpoint} if rated.checkpoint else None,
    )
    policy = policy_of(store, team, SOURCE)
    lines = ImportedLines()
    lines.add_job(job)
    redacted = Redaction(policy["redact"]).run(run)
    lines.add_run(replace(redacted, may_train=policy["may_train"]), job, SOURCE)
    lines.end_job(job)
    ingest(store, lines.take(), team)
    value = float(rated.up)
    return outcomes.add_outcome(store, team, run.trace_id, THUMB, value, source=rater)


def _trace(rated: RatedConversation) -> Trace:
    trace, calls = Trace(), dict[str, ToolCall]()
    prompt: list[Message] = []
    for message in rated.messages:
        if message.role in ("system", "user"):
            role: Literal["system", "user"] = "system" if message.role == "system" else "user"
            prompt.append(Message(role=role, content=message.content or ""))
            continue
        if prompt:
            trace.record(Step(source="user", messages=prompt))
            prompt = []
        if message.role == "assistant":
            made = [
                ToolCall(
                    id=call.id,
                    name=call.function.name,
                    arguments=parsed_arguments(call.function.arguments),
                )
                for call in message.tool_calls
            ]
            calls |= {call.id: call for call in made}
            trace.record(AgentStep(content=message.content, tool_calls=made, model=rated.model))
        else:
            result = ToolResult.of_text(message.content or "")
            trace.record(ToolStep(call=calls.get(message.tool_call_id or ""), result=result))
    trace.content = check_answer(rated.messages[-1].content)
    return trace
