"""Spans of one run as the runs that they record.

Clients of models repeat the conversation in each call, which is then linked by its messages. Agents that record content once
(a prompt at their own span, answers and results at those within) are read in the order of their spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from hud.errors import FailureKind
from hud.exchange import ForeignRun
from hud.trace.content import ToolCall, ToolResult, parsed_arguments
from hud.trace.ids import trace_id_of
from hud.trace.steps import SubagentStep, ToolStep
from hud_integrations.otlp_receiver.span_content import (
    evaluations_of,
    finish_reason_of,
    input_of,
    model_of,
    operation_of,
    output_of,
    tool_of,
    usage_of,
)
from hud_integrations.otlp_receiver.spans import Span
from hud_integrations.sources.conversations import Conversation, ModelCall
from hud_integrations.sources.traced_calls import reward_of, runs_of_trace

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EMPTY = {"role": "assistant", "content": None}


def runs_of_spans(name: str, spans: Sequence[Span]) -> Iterator[ForeignRun]:
    """Yield the runs of spans; the first is that of `name`. None where no model, tool or agent is among them."""
    ordered = sorted(spans, key=lambda span: (span["start"], span["span_id"]))
    acting = [
        span for span in ordered if operation_of(span) in ("chat", "execute_tool", "invoke_agent")
    ]
    if not acting:
        return
    fields = _fields(ordered, acting)
    chats = [span for span in acting if operation_of(span) == "chat"]
    if any(input_of(span) for span in chats):
        yield from runs_of_trace(name, [_call(span) for span in chats], **fields)
        return
    conversation = Conversation(name, {})
    _Scope(acting).play(conversation, "")
    values = {key: value for key, value in fields.items() if value is not None}
    yield conversation.run(**values)


def _fields(spans: Sequence[Span], acting: Sequence[Span]) -> dict[str, Any]:
    """Return the columns of the run: those of its outermost span, and the evaluations of all."""
    ids = {span["span_id"] for span in spans}
    root = next((span for span in spans if span["parent_id"] not in ids), spans[0])
    agent = next((span for span in acting if operation_of(span) == "invoke_agent"), root)
    attributes = agent["attributes"]
    reward, grade = reward_of([score for span in spans for score in evaluations_of(span)])
    open_spans = any(not span["end"] for span in spans)
    failure = attributes.get("error.type") if agent["status"] == 2 else None
    if failure is not None:
        failure = failure if failure in get_args(FailureKind) else "infrastructure"
    answer = output_of(agent)
    return {
        "slug": attributes.get("openhud.task")
        or attributes.get("gen_ai.agent.name")
        or root["name"],
        "group_id": attributes.get("openhud.group.id"),
        "attempt": attributes.get("openhud.attempt"),
        "model": model_of(agent),
        "content": None if answer is None else answer["content"],
        "stop_reason": attributes.get("openhud.stop_reason"),
        "status": "running" if open_spans else "error" if failure else None,
        "failure_kind": failure,
        "error": (agent["message"] or None) if failure else None,
        "reward": reward,
        "grade": grade,
        "started_at": _time(min(span["start"] for span in spans)),
        "ended_at": None if open_spans else _time(max(span["end"] for span in spans)),
    }


def _call(span: Span) -> ModelCall:
    return ModelCall(
        id=span["span_id"],
        messages=input_of(span),
        answer=output_of(span) or dict(_EMPTY),
        model=model_of(span),
        usage=usage_of(span),
        finish_reason=finish_reason_of(span),
        started_at=_time(span["start"]),
        ended_at=_time(span["end"] or span["start"]),
        error=_error(span),
    )


def _error(span: Span) -> str | None:
    failed = span["status"] == 2
    return (
        (span["message"] or str(span["attributes"].get("error.type") or "error"))
        if failed
        else None
    )


class _Scope:
    """Spans of agents that record each content once, by the agent within which they are."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._by_id = {span["span_id"]: span for span in spans}
        self._within: dict[str, list[Span]] = {}
        for span in spans:
            self._within.setdefault(self._owner(span), []).append(span)

    def play(self, conversation: Conversation, owner: str) -> None:
        """Add the steps of an agent, by the id of its span; empty: of what is in no agent."""
        for span in self._within.get(owner, []):
            match operation_of(span):
                case "chat":
                    _add_turn(conversation, span)
                case "execute_tool":
                    _add_tool(conversation, span)
                case _ if owner:
                    self._add_subagent(conversation, span)
                case _:
                    self._open(conversation, span)

    def _open(self, conversation: Conversation, span: Span) -> None:
        """Add the prompt of an agent, and its steps."""
        conversation.add(input_of(span), _time(span["start"]))
        conversation.model = model_of(span) or conversation.model
        self.play(conversation, span["span_id"])

    def _add_subagent(self, conversation: Conversation, span: Span) -> None:
        nested = Conversation(f"{conversation.id}:{span['span_id']}", {})
        self._open(nested, span)
        nested.trace.trace_id = trace_id_of(nested.id)
        answer = output_of(span)
        nested.trace.content = None if answer is None else answer["content"]
        attributes = span["attributes"]
        facts = {
            "tool": attributes.get("gen_ai.agent.name"),
            "slug": attributes.get("openhud.task"),
        }
        facts["model"] = model_of(span)
        conversation.trace.record(SubagentStep(subagent=nested.trace, extra=facts, **_times(span)))

    def _owner(self, span: Span) -> str:
        """Return the nearest agent around a span; empty without one."""
        parent, seen = self._by_id.get(span["parent_id"]), set[str]()
        while parent is not None and parent["span_id"] not in seen:
            if operation_of(parent) == "invoke_agent":
                return str(parent["span_id"])
            seen.add(parent["span_id"])
            parent = self._by_id.get(parent["parent_id"])
        return ""


def _add_turn(conversation: Conversation, span: Span) -> None:
    conversation.answer(
        output_of(span) or dict(_EMPTY),
        model=model_of(span),
        usage=usage_of(span),
        finish_reason=finish_reason_of(span),
        error=_error(span),
        **_times(span),
    )
    conversation.model = model_of(span) or conversation.model


def _add_tool(conversation: Conversation, span: Span) -> None:
    """Add a call's result; a call that no turn announced is recorded by itself, as scripts call tools."""
    identifier, name, arguments, result = tool_of(span)
    text = arguments if isinstance(arguments, str) else None
    call = ToolCall(
        **({} if identifier is None else {"id": identifier}),
        name=name,
        arguments=parsed_arguments(arguments if text is None else text),
    )
    shown = ToolResult.of_text(result or "", is_error=span["status"] == 2)
    conversation.trace.record(ToolStep(call=call, result=shown, **_times(span)))


def _times(span: Span) -> dict[str, datetime]:
    return {"started_at": _time(span["start"]), "ended_at": _time(span["end"] or span["start"])}


def _time(nanoseconds: int) -> datetime:
    """Return a time, to the microsecond."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)
