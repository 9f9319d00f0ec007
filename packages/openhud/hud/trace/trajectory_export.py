"""Runs as lines of `trajectories.jsonl`, and their pictures.

The schema is in this folder and in docs/trajectories.md.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hud import exact_json
from hud.trace.content import ImageContent
from hud.trace.steps import AgentStep, Sample, Step, SubagentStep, ToolStep, parse_trace

EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif"}
SCHEMA = Path(__file__).with_name("trajectories.schema.json")
ORIGIN = "jsonl"
"""Source of runs that are imported from this format: they were recorded by OpenHUD."""
_JOB = (
    *("name", "purpose", "group_size", "benchmark"),
    *("status", "created_at", "ended_at"),
)
_TOKENS = set(Sample.model_fields) - {"prompt_chunks"}


@dataclass(frozen=True)
class Picture:
    """An image of a run: in a prompt, in a tool's result, or of a screen after a step."""

    step_id: int
    path: str
    """Path relative to the folder of pictures: `TRACE/STEP-NUMBER.png`."""
    mime_type: str
    data: bytes


def pictures_of(trace: dict[str, Any]) -> list[Picture]:
    """Return the images of a recorded trace in the order of its steps; invalid base64 is omitted."""
    listed = []
    parsed = parse_trace(trace)
    folder = Path(parsed.trace_id or "trace").name  # Never outside of the pictures.
    for step in parsed.steps:
        for number, block in enumerate(_images(step), 1):
            kind = EXTENSIONS.get(block.mime_type, "bin")
            with suppress(ValueError):
                data = b64decode(block.data, validate=True)
                path = f"{folder}/{step.step_id}-{number}.{kind}"
                listed.append(Picture(step.step_id, path, block.mime_type, data))
    return listed


def trajectory_line(
    run: dict[str, Any],
    trace: dict[str, Any],
    job: Mapping[str, Any] | None,
    *,
    pictures: str | None = None,
) -> bytes:
    """Return the line of one recorded run (`run`, `trace` and `job` as the platform returns them).

    `job`: None for a run without one. `pictures` is the folder of the pictures, relative to the file; None: not written.
    """
    steps = parse_trace(trace).steps
    files = pictures_of(trace)
    task = run["task"] or {}
    first = next((n for n, step in enumerate(steps) if _is_played(step)), len(steps))
    prompt = [message for step in steps[:first] for message in _messages(step)]
    completion = _completion(steps[first:], run["content"])
    line = {
        "trace_id": run["trace_id"],
        "job_id": run["job_id"],
        "job": None if job is None else {name: job[name] for name in _JOB},
        "group_id": run["group_id"],
        "attempt": run["attempt"],
        "env": task.get("env"),
        "task": task.get("id"),
        "slug": run["slug"],
        "args": task.get("args") or {},
        "task_row": run["task"],
        "model": run["model"],
        "checkpoint": run["checkpoint"],
        "origin": None if run["source"] == ORIGIN else run["source"],
        "status": run["status"],
        "reward": run["reward"],
        "failure_kind": run["failure_kind"],
        "error": run["error"],
        "stop_reason": run["stop_reason"],
        "started_at": run["started_at"],
        "ended_at": run["ended_at"],
        "prompt": "\n".join(message["content"] for message in prompt),
        "completion": completion,
        "answer": run["content"],
        "messages": prompt + completion,
        "samples": [_sample(step) for step in steps if isinstance(step, AgentStep) and step.sample],
        "states": [
            {"step_id": step.step_id, "source": step.source, "state": step.extra["state"]}
            for step in steps
            if step.extra.get("state") is not None
        ],
        "pictures": []
        if pictures is None
        else [
            {
                "step_id": picture.step_id,
                "path": f"{pictures}/{picture.path}",
                "mime_type": picture.mime_type,
            }
            for picture in files
        ],
        "steps": [_stored(step, files, pictures) for step in trace["steps"]],
        "grade": run["grade"],
        "extra": run["extra"],
        "usage": {
            name: run[name]
            for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "turns", "cost_usd")
        },
    }
    return exact_json.dumps(line, option=exact_json.OPT_APPEND_NEWLINE)


def _is_played(step: Step) -> bool:
    """Return True for the agent's steps; the steps before the first are the prompt."""
    return isinstance(step, AgentStep | ToolStep | SubagentStep)


def _completion(steps: Sequence[Step], answer: str | None) -> list[dict[str, Any]]:
    """Return the agent's part of the conversation, as chat templates take it.

    For tool calls and answers without a recorded turn (scripts), an assistant message is added.
    """
    messages: list[dict[str, Any]] = []
    announced: set[str] = set()
    for step in steps:
        if isinstance(step, AgentStep):
            announced = {call.id for call in step.tool_calls}
        elif isinstance(step, ToolStep) and step.call is not None:
            if step.call.id not in announced:
                announced = {step.call.id}
                messages += _messages(AgentStep(tool_calls=[step.call]))
        elif step.source == "user":
            announced = set()
        messages += _messages(step)
    answers = [
        message["content"]
        for message in messages
        if message["role"] == "assistant" and message["content"]
    ]
    if answer and answers[-1:] != [answer]:
        messages.append({"role": "assistant", "content": answer})
    return messages


def _messages(step: Step) -> list[dict[str, Any]]:
    """Return a step as chat-completions messages."""
    if step.source == "user":
        return [{"role": message.role, "content": message.text} for message in step.messages]
    if isinstance(step, AgentStep):
        message: dict[str, Any] = {"role": "assistant", "content": step.content}
        if step.reasoning:
            message["reasoning_content"] = step.reasoning
        if step.tool_calls:
            message["tool_calls"] = [call.message() for call in step.tool_calls]
        return [message]
    if isinstance(step, ToolStep) and step.result is not None:
        answered = step.call.id if step.call is not None else ""
        return [{"role": "tool", "content": step.result.text, "tool_call_id": answered}]
    return []


def _images(step: Step) -> Iterator[ImageContent]:
    for message in step.messages:
        if not isinstance(message.content, str):
            yield from (block for block in message.content if isinstance(block, ImageContent))
    if isinstance(step, ToolStep) and step.result is not None:
        yield from (block for block in step.result.content if isinstance(block, ImageContent))
    with suppress(ValidationError):
        if "screenshot" in step.extra:
            yield ImageContent.model_validate(step.extra["screenshot"])


def _sample(step: AgentStep) -> dict[str, Any]:
    assert step.sample is not None
    empty = {name for name in ("swaps", "pictures", "excluded") if not getattr(step.sample, name)}
    unsaid = {"prompt_chunks", *empty}
    return {"step_id": step.step_id, **step.sample.model_dump(exclude=unsaid)}


def _stored(step: dict[str, Any], files: Sequence[Picture], folder: str | None) -> dict[str, Any]:
    """Return a step as it is stored, without the tokens of its sample and without the files of its pictures."""
    stored = {name: value for name, value in step.items() if name != "sample"}
    sample = step.get("sample")
    if isinstance(sample, dict):
        chunks = {name: value for name, value in sample.items() if name not in _TOKENS}
        stored |= {"sample": chunks} if chunks else {}
    paths = {
        # Another spelling of the same bytes stays: it could not be restored from the file.
        b64encode(picture.data).decode(): None if folder is None else f"{folder}/{picture.path}"
        for picture in files
        if picture.step_id == step.get("step_id")
    }
    return _with_paths(stored, paths) if paths else stored


def _with_paths(value: Any, paths: Mapping[str, str | None]) -> Any:
    """Return a JSON value in which base64 texts under `data` are replaced by the paths of their files."""
    if isinstance(value, list):
        return [_with_paths(element, paths) for element in value]
    if not isinstance(value, dict):
        return value
    return {
        name: {"file": paths[inner]}
        if name == "data" and isinstance(inner, str) and inner in paths
        else _with_paths(inner, paths)
        for name, inner in value.items()
    }
