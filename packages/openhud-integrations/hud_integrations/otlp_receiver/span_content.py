"""Content of a model's span: messages, answer, counts of tokens, tool calls.

Reads the conventions for generative AI (attributes, and the events of their earlier versions), and the indexed attributes of
OpenLLMetry (`gen_ai.prompt.0.content`) and OpenInference (`llm.input_messages.0.message.content`).
"""

from __future__ import annotations

import re
from typing import Any

from hud import exact_json
from hud.trace import ChatMessage
from hud.trace.steps import Usage
from hud_integrations.otlp_receiver.spans import Span
from hud_integrations.sources.chat_messages import read_messages

_MODEL_OPERATIONS = ("chat", "text_completion", "generate_content")
_INDEXED = {
    "input": ("gen_ai.prompt", "llm.input_messages"),
    "output": ("gen_ai.completion", "llm.output_messages"),
}
_PATH = re.compile(r"\.(\d+)\.(.+)")


def operation_of(span: Span) -> str:
    """Return `chat`, `execute_tool`, `invoke_agent`, or another operation; empty for a span of none."""
    attributes = span["attributes"]
    name = attributes.get("gen_ai.operation.name")
    kind = attributes.get("openinference.span.kind") or attributes.get("traceloop.span.kind")
    if name in _MODEL_OPERATIONS or kind == "LLM" or "llm.request.type" in attributes:
        return "chat"
    others = {"TOOL": "execute_tool", "tool": "execute_tool"}
    agents = {"AGENT": "invoke_agent", "agent": "invoke_agent"}
    return str(name or (others | agents).get(str(kind), ""))


def input_of(span: Span) -> list[ChatMessage]:
    """Return the messages of a span's request, system instructions first."""
    attributes = _with_details(span)
    system = _parsed(attributes.get("gen_ai.system_instructions"))
    opening = read_messages([{"role": "system", "content": system}]) if system else []
    messages = _parsed(attributes.get("gen_ai.input.messages"))
    if messages:
        return [*opening, *read_messages(messages)]
    return opening + (read_messages(_indexed(attributes, "input")) or read_messages(_events(span)))


def output_of(span: Span) -> ChatMessage | None:
    """Return the message of a span's answer; None where its content was not recorded."""
    attributes = _with_details(span)
    listed = _parsed(attributes.get("gen_ai.output.messages")) or _indexed(attributes, "output")
    if not listed:
        choices = [event for event in span["events"] if event["name"] == "gen_ai.choice"]
        bodies = [_parsed(event["attributes"].get("message")) for event in choices]
        listed = [{"role": "assistant", **body} for body in bodies if isinstance(body, dict)]
    messages = read_messages(listed)
    turns = [message for message in messages if message["role"] == "assistant"]
    return turns[0] if turns else None


def usage_of(span: Span) -> Usage | None:
    """Return the counts of tokens of a span; None without any."""
    prompt = _first(
        span, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"
    )
    completion = _first(
        span,
        *("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
        "llm.token_count.completion",
    )
    if prompt is None and completion is None:
        return None
    cached = _first(
        span, "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"
    )
    return Usage(
        prompt_tokens=int(prompt or 0),
        completion_tokens=int(completion or 0),
        cached_tokens=int(cached or 0),
    )


def model_of(span: Span) -> str | None:
    """Return the model of a span: the one that answered, else the one that was asked."""
    model = _first(span, "gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
    return None if model is None else str(model)


def finish_reason_of(span: Span) -> str | None:
    """Return the reason why an answer ended."""
    reasons = span["attributes"].get("gen_ai.response.finish_reasons")
    return str(reasons[0]) if isinstance(reasons, list | tuple) and reasons else None


def tool_of(span: Span) -> tuple[str | None, str, Any, str | None]:
    """Return the id, the name, the arguments and the result of a tool's span."""
    identifier = _first(span, "gen_ai.tool.call.id", "tool_call.id")
    name = _first(span, "gen_ai.tool.name", "tool.name", "traceloop.entity.name") or span["name"]
    arguments = _first(span, "gen_ai.tool.call.arguments", "input.value", "traceloop.entity.input")
    result = _first(span, "gen_ai.tool.call.result", "output.value", "traceloop.entity.output")
    shown = result if isinstance(result, str | None) else exact_json.dumps(result).decode()
    return None if identifier is None else str(identifier), str(name), arguments, shown


def evaluations_of(span: Span) -> list[dict[str, Any]]:
    """Return the evaluations among a span's events, as named scores."""
    listed = [
        event["attributes"]
        for event in span["events"]
        if event["name"] == "gen_ai.evaluation.result"
    ]
    return [
        {
            "name": attributes.get("gen_ai.evaluation.name"),
            "value": attributes.get("gen_ai.evaluation.score.value"),
        }
        for attributes in listed
    ]


def _with_details(span: Span) -> dict[str, Any]:
    """Return a span's attributes with those of its event of details, which holds large content."""
    details = [
        event["attributes"]
        for event in span["events"]
        if event["name"] == "gen_ai.client.inference.operation.details"
    ]
    return {**span["attributes"], **(details[-1] if details else {})}


def _events(span: Span) -> list[dict[str, Any]]:
    """Return the messages of a request that are events, such as `gen_ai.user.message`."""
    messages = []
    for event in span["events"]:
        match = re.fullmatch(r"gen_ai\.(system|user|assistant|tool)\.message", event["name"])
        if match:
            fields = {key: _parsed(value) for key, value in event["attributes"].items()}
            messages.append({"role": match.group(1), **fields})
    return messages


def _indexed(attributes: dict[str, Any], side: str) -> list[dict[str, Any]]:
    """Return messages whose fields are attributes of their own, with a message's number in their names."""
    for prefix in _INDEXED[side]:
        messages: dict[int, dict[str, Any]] = {}
        for key, value in attributes.items():
            match = _PATH.match(key, len(prefix)) if key.startswith(f"{prefix}.") else None
            if match:
                path = match.group(2).removeprefix("message.")
                _put(messages.setdefault(int(match.group(1)), {}), path, value)
        if messages:
            return [_message(messages[number], side) for number in sorted(messages)]
    return []


def _put(message: dict[str, Any], path: str, value: Any) -> None:
    """Set a field of a message; `tool_calls.0.name` is a field of its first call."""
    match = re.fullmatch(
        r"(?:message\.)?tool_calls\.(\d+)\.(?:tool_call\.)?(?:function\.)?(\w+)", path
    )
    if match is None:
        message[path] = value
    else:
        calls = message.setdefault("tool_calls", {})
        calls.setdefault(int(match.group(1)), {})[match.group(2)] = value


def _message(fields: dict[str, Any], side: str) -> dict[str, Any]:
    calls = fields.get("tool_calls", {})
    content = _parsed(fields.get("content"))
    return {
        "role": fields.get("role") or ("assistant" if side == "output" else "user"),
        "content": content if isinstance(content, str | list) else fields.get("content"),
        "tool_call_id": fields.get("tool_call_id"),
        **({"tool_calls": [calls[number] for number in sorted(calls)]} if calls else {}),
    }


def _parsed(value: Any) -> Any:
    """Return a value; JSON within a text is read."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return exact_json.loads(value)
        except exact_json.JSONDecodeError:
            return value
    return value


def _first(span: Span, *names: str) -> Any:
    attributes = span["attributes"]
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)
