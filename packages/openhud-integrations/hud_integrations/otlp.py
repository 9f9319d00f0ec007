"""Runs as OpenTelemetry traces, in the semantic conventions for generative AI, and in OTLP's JSON encoding.

A run is a trace of its own trace id: a span `invoke_agent`, and in it `chat` for each turn of the model, `execute_tool` for
each call of a tool, and `invoke_agent` for each subagent. The reward is an event `gen_ai.evaluation.result`. Needs no package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hud import __version__
from hud.trace.content import Message, ToolCall
from hud.trace.steps import AgentStep, Step, SubagentStep, ToolStep, Trace, parse_trace

INTERNAL, CLIENT = 1, 3
ERROR = 2
PROVIDER = "openhud"


def otlp_traces(run: dict[str, Any], trace: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded run (`run` and `trace` as the platform returns them) as an export request of OTLP."""
    spans = _Spans(run["trace_id"])
    task = run["task"] or {}
    parsed = parse_trace(trace)
    facts = {
        "openhud.job.id": run["job_id"],
        "openhud.group.id": run["group_id"],
        "openhud.attempt": run["attempt"],
        "openhud.env": task.get("env"),
        "openhud.task": run["slug"],
        "openhud.stop_reason": run["stop_reason"],
        "gen_ai.conversation.id": run["trace_id"],
    }
    root = spans.add_run(parsed, None, "agent", run["model"], run["content"], facts)
    if run["reward"] is not None:
        root["events"].append(_evaluation(root["endTimeUnixNano"], run))
    if run["failure_kind"] is not None:
        root["attributes"] += attributes({"error.type": run["failure_kind"]})
        root["status"] = {"code": ERROR, "message": run["error"] or run["failure_kind"]}
    scope = {"name": "openhud", "version": __version__}
    resource = attributes({"service.name": "openhud", "service.version": __version__})
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": resource},
                "scopeSpans": [{"scope": scope, "spans": spans.all}],
            }
        ]
    }


class _Spans:
    """The spans of one run and of its subagents."""

    def __init__(self, trace_id: str) -> None:
        self._trace_id = trace_id
        self.all: list[dict[str, Any]] = []

    def add_run(
        self,
        trace: Trace,
        parent: str | None,
        name: str,
        model: str | None,
        answer: str | None,
        facts: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Add the span of a run, and those of its steps; returns the run's."""
        prompt = [
            message for step in trace.steps if step.source == "user" for message in step.messages
        ]
        run_attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.agent.name": name,
            "gen_ai.request.model": model,
            "gen_ai.input.messages": json.dumps([_said(message) for message in prompt]),
            "gen_ai.output.messages": json.dumps([_answer(answer)]) if answer else None,
            **facts,
        }
        root = self._add(f"invoke_agent {name}", INTERNAL, parent, trace.steps, run_attributes)
        for step in trace.steps:
            self._add_step(step, root["spanId"])
        return root

    def _add_step(self, step: Step, parent: str) -> None:
        if isinstance(step, AgentStep):
            self._add(f"chat {step.model or ''}".strip(), CLIENT, parent, [step], _chat(step))
        elif isinstance(step, ToolStep) and step.call is not None:
            span = self._add(
                f"execute_tool {step.call.name}", INTERNAL, parent, [step], _tool(step, step.call)
            )
            if step.result is not None and step.result.is_error:
                span["status"] = {"code": ERROR, "message": step.result.text[:200]}
        elif isinstance(step, SubagentStep) and step.subagent is not None:
            nested, extra = step.subagent, step.extra
            facts = {"openhud.task": extra.get("slug")}
            name = str(extra.get("tool") or "subagent")
            self.add_run(nested, parent, name, extra.get("model"), nested.content, facts)

    def _add(
        self, name: str, kind: int, parent: str | None, steps: list[Any], values: Mapping[str, Any]
    ) -> dict[str, Any]:
        place = f"{self._trace_id} {len(self.all)}"
        ends = [step.ended_at or step.started_at for step in steps]
        span: dict[str, Any] = {
            "traceId": self._trace_id,
            "spanId": hashlib.sha256(place.encode()).hexdigest()[:16],
            "name": name,
            "kind": kind,
            "startTimeUnixNano": _nanoseconds(
                min((step.started_at for step in steps), default=None)
            ),
            "endTimeUnixNano": _nanoseconds(max(ends, default=None)),
            "attributes": attributes(values),
            "events": [],
        }
        if parent is not None:
            span["parentSpanId"] = parent
        self.all.append(span)
        return span


def attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes in OTLP's JSON; those that are None are left out."""
    return [
        {"key": key, "value": _value(value)} for key, value in values.items() if value is not None
    ]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(element) for element in value]}}
    return {"stringValue": str(value)}


def _chat(step: AgentStep) -> dict[str, Any]:
    usage = step.usage
    parts: list[dict[str, Any]] = []
    if step.reasoning:
        parts.append({"type": "reasoning", "content": step.reasoning})
    if step.content:
        parts.append({"type": "text", "content": step.content})
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
        for call in step.tool_calls
    ]
    reason = step.finish_reason or ("tool_calls" if step.tool_calls else "stop")
    message = {"role": "assistant", "parts": parts, "finish_reason": reason}
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": step.model,
        "gen_ai.response.finish_reasons": [step.finish_reason] if step.finish_reason else None,
        "gen_ai.usage.input_tokens": None if usage is None else usage.prompt_tokens,
        "gen_ai.usage.output_tokens": None if usage is None else usage.completion_tokens,
        "gen_ai.output.messages": json.dumps([message]),
    }


def _tool(step: ToolStep, call: ToolCall) -> dict[str, Any]:
    failed = step.result is not None and step.result.is_error
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.arguments": call.arguments_text,
        "gen_ai.tool.call.result": None if step.result is None else step.result.text,
        "error.type": "tool_error" if failed else None,
    }


def _evaluation(time: str, run: dict[str, Any]) -> dict[str, Any]:
    values = {
        "gen_ai.evaluation.name": "reward",
        "gen_ai.evaluation.score.value": float(run["reward"]),
        "gen_ai.evaluation.explanation": (run["grade"] or {}).get("content"),
    }
    return {
        "name": "gen_ai.evaluation.result",
        "timeUnixNano": time,
        "attributes": attributes(values),
    }


def _said(message: Message) -> dict[str, Any]:
    return {"role": message.role, "parts": [{"type": "text", "content": message.text}]}


def _answer(text: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "parts": [{"type": "text", "content": text}],
        "finish_reason": "stop",
    }


def _nanoseconds(time: datetime | None) -> str:
    """Return a time as OTLP has it, exactly: a text of nanoseconds since 1970."""
    if time is None:
        return "0"
    return f"{int(time.timestamp())}{time.microsecond * 1000:09d}"
