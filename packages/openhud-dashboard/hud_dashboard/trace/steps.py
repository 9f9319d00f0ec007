"""Views of steps: plain data for the templates, from clients' payloads, which are untrusted.
The shape of a payload is never assumed: unexpected values are shown as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hud.agents.context_window import COMPACTION
from hud.trace.recorded_time import seconds_between
from hud_dashboard.trace.changes import changed_files, changed_state
from hud_dashboard.trace.grades import grade_of
from hud_dashboard.trace.images import image_name
from hud_dashboard.trace.values import (
    as_json,
    dict_of,
    moment_of,
    number_of,
    several,
    text_of,
)

MOST_BLOCKS = 50
MOST_CALLS = 50
LONGEST_FIELD = 80
LONGEST_BRIEF = 120
_SOURCES = ("agent", "tool", "user", "task", "subagent", "system")
_EVERY_STEP = {
    "step_id",
    "source",
    "messages",
    "task_call",
    "error",
    "started_at",
    "ended_at",
    "extra",
}
_OF_SOURCE = {
    "agent": {
        "content",
        "reasoning",
        "tool_calls",
        "done",
        "finish_reason",
        "refusal",
        "model",
        "usage",
        "citations",
        "sample",
    },
    "tool": {"call", "result"},
    "subagent": {"subagent"},
}
_SHOWN_EXTRA = {"state", "tool", "model", "slug", "reward", "failure_kind", COMPACTION}
_QUIET = (None, "", "stop", "tool_calls", "end_turn", "tool_use")
"""Finish reasons of a turn that are not shown."""

Payload = dict[str, Any]
View = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """Context in which steps are shown."""

    trace_id: str
    began: datetime | None = None
    """Start of the run, to which times of steps are relative."""
    prefix: str = ""
    """Prefix of step numbers: `12.` for steps nested in step 12."""
    model: str | None = None
    """Model of the run; turns of another model show its name."""
    images: str = ""
    """Number of the outer step that contains the images, for nested steps."""
    seen: dict[str, Any] = field(default_factory=dict)

    def image(self, name: str, number: str) -> str:
        """Return the address of an image."""
        return f"/trace/{self.trace_id}/steps/{self.images or number}/image/{name}"


def shown_steps(
    setting: Setting, steps: list[tuple[int, Payload]], state: Any = None
) -> list[View]:
    """Return the views of consecutive steps; `state` is the environment's state before the first."""
    answered = {
        call["id"]
        for _, payload in steps
        if payload.get("source") == "tool" and (call := _call(payload.get("call"))) is not None
    }
    views = []
    for step_id, payload in steps:
        view = shown_step(setting, step_id, payload)
        for call in view["calls"]:
            call["answered"] = call["id"] != "" and call["id"] in answered
        extra = dict_of(payload.get("extra"))
        if extra.get("state") is not None:
            view["state"] = changed_state(state, extra["state"])
            state = extra["state"]
        views.append(view)
    return views


def shown_step(setting: Setting, step_id: int, payload: Payload) -> View:
    """Return the view of one step."""
    recorded = payload.get("source")
    source = recorded if isinstance(recorded, str) and recorded in _SOURCES else "system"
    number = f"{setting.prefix}{step_id}"
    started, ended = moment_of(payload.get("started_at")), moment_of(payload.get("ended_at"))
    extra = dict_of(payload.get("extra"))
    view: View = {
        "number": number,
        "source": source,
        "at": seconds_between(setting.began, started),
        "seconds": seconds_between(started, ended),
        "error": text_of(payload.get("error")),
        "failed": is_failed(payload),
        "calls": [],
        "task": None,
        "tokens": None,
        "state": None,
        "cut": _cut(extra),
        "files": changed_files(extra),
        "shots": _screenshots(setting, number, extra),
        "extra": _rest(source, payload, extra),
        "address": f"/trace/{setting.trace_id}/steps/{number}.json",
    }
    if source == "agent":
        view |= _agent(payload, setting)
    elif source == "tool":
        view |= _tool(payload, setting, number)
    elif source == "subagent":
        view |= _subagent(payload)
    task_call = payload.get("task_call")
    if isinstance(task_call, dict):
        view["task"] = _task(task_call)
    view["messages"] = [
        {
            "role": text_of(dict_of(message).get("role")) or "user",
            "blocks": blocks(dict_of(message).get("content", message), setting, number),
        }
        for message in several(payload.get("messages"))[:MOST_BLOCKS]
    ]
    return view


def is_failed(payload: Payload) -> bool:
    """Return True for a failed step: an error, including a tool's, or a failed subagent."""
    result = dict_of(payload.get("result"))
    return bool(
        payload.get("error")
        or result.get("isError")
        or result.get("is_error")
        or dict_of(payload.get("extra")).get("failure_kind")
    )


def blocks(content: Any, setting: Setting, number: str) -> list[View]:
    """Return the content of messages and results as blocks `{kind: text | image | json, ...}`."""
    shown: list[View] = []
    parts = several(content)
    for block in parts[:MOST_BLOCKS]:
        name = image_name(block)
        if name is not None:
            shown.append({"kind": "image", "address": setting.image(name, number)})
        elif isinstance(block, str):
            shown.append({"kind": "text", "text": block})
        elif isinstance(block, dict) and isinstance(block.get("text"), str):
            shown.append({"kind": "text", "text": block["text"]})
        elif isinstance(block, dict) and isinstance(
            dict_of(block.get("resource")).get("text"), str
        ):
            shown.append({"kind": "text", "text": block["resource"]["text"]})
        else:
            shown.append({"kind": "json", "text": as_json(block)})
    if len(parts) > MOST_BLOCKS:
        shown.append({"kind": "more", "count": len(parts) - MOST_BLOCKS})
    return shown


def arguments_of(value: Any) -> View:
    """Return a call's arguments: `{fields: [{name, text, long}], text, brief}`; `text` for anything but an object."""
    if not isinstance(value, dict):
        text = value if isinstance(value, str) else as_json(value)
        return {"fields": [], "text": text, "brief": _brief(text)}
    fields: list[View] = []
    for name, argument in list(value.items())[:MOST_BLOCKS]:
        text = argument if isinstance(argument, str) else as_json(argument)
        long = len(text) > LONGEST_FIELD or "\n" in text
        fields.append({"name": str(name), "text": text, "long": long})
    brief = ", ".join(f"{field['name']}: {_brief(field['text'])}" for field in fields)
    return {"fields": fields, "text": None, "brief": _brief(brief)}


def _brief(text: str) -> str:
    """Return a text as one short line."""
    line = " ".join(text[: 4 * LONGEST_BRIEF].split())
    return line if len(line) <= LONGEST_BRIEF else f"{line[:LONGEST_BRIEF]}…"


def _agent(payload: Payload, setting: Setting) -> View:
    usage = dict_of(payload.get("usage"))
    model = text_of(payload.get("model"))
    finish = payload.get("finish_reason")
    calls = []
    for call in several(payload.get("tool_calls"))[:MOST_CALLS]:
        shown_call = _call(call)
        calls.append(shown_call or {"id": "", "name": "?", **arguments_of(call)})
    return {
        "text": text_of(payload.get("content")),
        "reasoning": text_of(payload.get("reasoning")),
        "refusal": text_of(payload.get("refusal")),
        "calls": calls,
        "model": model if model and model != setting.model else None,
        "finish": None if finish in _QUIET else text_of(finish),
        "citations": [
            {name: text_of(dict_of(citation).get(name)) for name in ("text", "source", "title")}
            for citation in several(payload.get("citations"))[:MOST_BLOCKS]
        ],
        "usage": {
            name: number_of(usage.get(name))
            for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
        }
        if usage
        else None,
    }


def _tool(payload: Payload, setting: Setting, number: str) -> View:
    result = payload.get("result")
    content = result if isinstance(result, dict) else {"content": result}
    structured = content.get("structuredContent", content.get("structured_content"))
    shown = [] if result is None else blocks(content.get("content"), setting, number)
    texts = [block["text"] for block in shown if block["kind"] == "text"]
    # A result with equal text and structured data is shown once.
    repeated = structured is None or (
        isinstance(structured, dict)
        and list(structured.values()) in ([texts[0]] if texts else [""], texts)
    )
    return {
        "call": _call(payload.get("call")),
        "result": shown,
        "answered": result is not None,
        "structured": None if repeated else as_json(structured),
        "is_error": bool(content.get("isError") or content.get("is_error")),
    }


def _subagent(payload: Payload) -> View:
    extra, nested = dict_of(payload.get("extra")), dict_of(payload.get("subagent"))
    trace_id = nested.get("trace_id")
    return {
        "nested": {
            "tool": text_of(extra.get("tool")) or "subagent",
            "model": text_of(extra.get("model")),
            "slug": text_of(extra.get("slug")),
            "reward": number_of(extra.get("reward")),
            "failure_kind": text_of(extra.get("failure_kind")),
            "status": text_of(nested.get("status")),
            "trace_id": trace_id if isinstance(trace_id, str) and trace_id.isalnum() else None,
            "steps": len(several(nested.get("steps"))),
        }
    }


def _task(call: Payload) -> View:
    phase = "evaluate" if call.get("phase") == "evaluate" else "setup"
    result = call.get("result")
    arguments = call.get("arguments")
    answer = dict_of(arguments).get("answer") if phase == "evaluate" else None
    return {
        "phase": phase,
        "name": text_of(call.get("name")) or "",
        "arguments": None if answer is not None or not arguments else arguments_of(arguments),
        "answer": text_of(answer),
        "grade": grade_of(result) if isinstance(result, dict) else None,
        "result": None if result is None or isinstance(result, dict) else as_json(result),
    }


def _cut(extra: Payload) -> View | None:
    """Return the sizes of a conversation that a summary replaced; None for other steps."""
    cut = dict_of(extra.get(COMPACTION))
    return {name: number_of(cut.get(name)) for name in ("tokens", "lost_turns")} if cut else None


def _call(call: Any) -> View | None:
    if not isinstance(call, dict) or call.get("name") is None:
        return None
    return {
        "id": text_of(call.get("id")) or "",
        "name": text_of(call["name"]),
        **arguments_of(call.get("arguments") if call.get("arguments") is not None else {}),
    }


def _screenshots(setting: Setting, number: str, extra: Payload) -> list[View]:
    """Return the screenshots after a step: one for each capability with a screen."""
    return [
        {"name": key, "address": setting.image(name, number)}
        for key, value in extra.items()
        if (name := image_name(value)) is not None
    ]


def _rest(source: str, payload: Payload, extra: Payload) -> str | None:
    """Return the remaining fields of a step, as JSON."""
    shown = _EVERY_STEP | _OF_SOURCE.get(source, set())
    left = {name: value for name, value in payload.items() if name not in shown and value}
    if payload.get("source") != source:
        left = {"source": payload.get("source"), **left}
    for name, value in extra.items():
        if name not in _SHOWN_EXTRA and name.partition(":")[0] != "files" and not image_name(value):
            left[name] = value
    return as_json(left) if left else None
