"""The source `atif`: trajectories of ATIF, which Harbor writes, with token ids and log-probabilities where they are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hud import exact_json
from hud.errors import UsageError
from hud.exchange import ForeignRun, RunSource
from hud.input_files import read_input
from hud.trace.content import Message, ToolCall, ToolResult
from hud.trace.recorded_time import now
from hud.trace.steps import AgentStep, Sample, Step, ToolStep, Trace, Usage
from hud_integrations.sources.json_lines import time_of

_Row = dict[str, Any]


def is_trajectory(path: Path) -> bool:
    """Return whether a file is a trajectory, or a folder has some."""
    return any(_document(file) is not None for file in _files(path))


def read_trajectories(path: Path) -> Iterator[ForeignRun]:
    """Yield the run of each trajectory. Raises `UsageError` for one that lacks its steps."""
    for file in _files(path):
        document = _document(file)
        if document is not None:
            yield _run(document, file)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.rglob("trajectory.json"))
    return [path] if path.suffix == ".json" else []


def _document(file: Path) -> _Row | None:
    try:
        document = exact_json.loads(read_input(file))
    except exact_json.JSONDecodeError:
        return None
    is_atif = isinstance(document, dict) and str(document.get("schema_version")).startswith("ATIF")
    return document if is_atif else None


def _run(document: _Row, file: Path) -> ForeignRun:
    agent, extra = document.get("agent") or {}, document.get("extra") or {}
    steps = document.get("steps")
    if not isinstance(steps, list):
        raise UsageError(f"{file} has no steps.")
    trace = Trace()
    for step in steps:
        _record(trace, step, agent.get("model_name"))
    reward = extra.get("reward", _verifier_reward(file))
    answer = next((step["message"] for step in steps[::-1] if step.get("source") == "agent"), None)
    failure = extra.get("failure_kind")
    return ForeignRun(
        foreign_id=str(
            document.get("session_id") or document.get("trajectory_id") or file.parent.name
        ),
        steps=trace.steps,
        group_id=extra.get("group_id"),
        slug=extra.get("task"),
        model=agent.get("model_name"),
        reward=None if reward is None else float(reward),
        status="completed" if failure is None else "error",
        failure_kind=failure,
        content=answer or None,
        extra={"agent": agent.get("name"), "version": agent.get("version")},
    )


def _verifier_reward(file: Path) -> float | None:
    """Return the reward of a trial of Harbor, whose trajectory is in its folder `agent`."""
    path = file.parent.parent / "verifier" / "reward.txt"
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


def _record(trace: Trace, step: _Row, model: str | None) -> None:
    """Append a step, and the results of its calls."""
    at = time_of(step.get("timestamp")) or now()
    if step.get("source") != "agent":
        role = "system" if step.get("source") == "system" else "user"
        spoken = Message(role=role, content=_text(step.get("message")))
        last = trace.steps[-1] if trace.steps else None
        if type(last) is Step:
            last.messages = [*last.messages, spoken]
        else:
            trace.record(Step(source="user", messages=[spoken], started_at=at, ended_at=at))
        return
    calls = [_call(call) for call in step.get("tool_calls") or []]
    metrics = step.get("metrics") or {}
    trace.record(
        AgentStep(
            content=_text(step.get("message")) or None,
            reasoning=step.get("reasoning_content"),
            tool_calls=calls,
            model=step.get("model_name") or model,
            usage=_usage(metrics),
            sample=_sample(metrics),
            started_at=at,
            ended_at=at,
        )
    )
    by_id = {call.id: call for call in calls}
    for result in (step.get("observation") or {}).get("results") or []:
        call = by_id.get(result.get("source_call_id"), calls[0] if calls else None)
        shown = ToolResult.of_text(_text(result.get("content")))
        trace.record(ToolStep(call=call, result=shown, started_at=at, ended_at=at))


def _call(call: _Row) -> ToolCall:
    malformed = (call.get("extra") or {}).get("malformed_arguments")
    arguments = call.get("arguments") if malformed is None else malformed
    identifier = call.get("tool_call_id")
    fields = {} if identifier is None else {"id": identifier}
    return ToolCall(name=call["function_name"], arguments=arguments or {}, **fields)


def _usage(metrics: _Row) -> Usage | None:
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
    counts = {name: metrics[name] for name in names if metrics.get(name) is not None}
    return Usage(**counts) if counts else None


def _sample(metrics: _Row) -> Sample | None:
    """Return the tokens of a turn; None unless prompt, output and log-probabilities are recorded."""
    names = ("prompt_token_ids", "completion_token_ids", "logprobs")
    prompt, output, logprobs = (metrics.get(name) for name in names)
    if prompt is None or output is None or logprobs is None or len(output) != len(logprobs):
        return None
    return Sample(prompt_token_ids=prompt, output_token_ids=output, output_logprobs=logprobs)


def _text(message: Any) -> str:
    if isinstance(message, list):
        return "\n".join(str(part.get("text", "")) for part in message if isinstance(part, dict))
    return "" if message is None else str(message)


atif = RunSource(
    summary="trajectories of ATIF, as Harbor writes them",
    recognizes=is_trajectory,
    read=read_trajectories,
)
