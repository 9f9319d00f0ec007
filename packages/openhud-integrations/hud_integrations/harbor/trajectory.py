"""Runs as trajectories of ATIF, the interchange format that Harbor reads and writes (version 1.8)."""

from __future__ import annotations

from typing import Any

from hud import __version__
from hud.trace.content import ToolCall
from hud.trace.steps import AgentStep, Step, ToolStep, Trace, Usage, parse_trace

VERSION = "ATIF-v1.8"


def atif_trajectory(run: dict[str, Any], trace: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded run (`run` and `trace` as the platform returns them) as a trajectory.

    Pictures and the traces of subagents have no place in it. `extra` holds the reward, the task and the failure, if any.
    """
    parsed = parse_trace(trace)
    usage = parsed.usage
    return {
        "schema_version": VERSION,
        "session_id": run["trace_id"],
        "agent": _set(name="openhud", version=__version__, model_name=run["model"]),
        "steps": _steps(parsed, run["content"]),
        "final_metrics": _set(
            total_prompt_tokens=usage.prompt_tokens,
            total_completion_tokens=usage.completion_tokens,
            total_cached_tokens=usage.cached_tokens,
            total_cost_usd=usage.cost_usd,
        ),
        "extra": {
            "job_id": run["job_id"],
            "group_id": run["group_id"],
            "task": run["slug"],
            "reward": run["reward"],
            "failure_kind": run["failure_kind"],
        },
    }


def _set(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None: the format forbids some of the others."""
    return {name: value for name, value in fields.items() if value is not None}


def _steps(trace: Trace, answer: str | None) -> list[dict[str, Any]]:
    """Return the conversation: results of tools belong to the step that called them."""
    steps: list[dict[str, Any]] = []
    calls: dict[str, dict[str, Any]] = {}
    for step in trace.steps:
        if step.source == "user":
            steps += [
                _step(step, "system" if message.role == "system" else "user", message.text)
                for message in step.messages
            ]
        elif isinstance(step, AgentStep):
            steps.append(_agent_step(step))
            calls = {call.id: steps[-1] for call in step.tool_calls}
        elif isinstance(step, ToolStep) and step.call is not None and step.result is not None:
            if step.call.id not in calls:  # A script calls tools without a turn of a model.
                steps.append(_step(step, "agent", "") | {"tool_calls": [_call(step.call)]})
                calls = {step.call.id: steps[-1]}
            observed = calls[step.call.id].setdefault("observation", {"results": []})
            observed["results"].append(
                {"source_call_id": step.call.id, "content": step.result.text}
            )
    answers = [step["message"] for step in steps if step["source"] == "agent" and step["message"]]
    if (answer and answers[-1:] != [answer]) or not steps:
        steps.append({"source": "agent", "message": answer or ""})
    return [{"step_id": place, **step} for place, step in enumerate(steps, 1)]


def _step(step: Step, source: str, message: str) -> dict[str, Any]:
    return {"timestamp": step.started_at.isoformat(), "source": source, "message": message}


def _agent_step(step: AgentStep) -> dict[str, Any]:
    usage, sample = step.usage or Usage(), step.sample
    metrics = _set(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        cost_usd=usage.cost_usd,
        prompt_token_ids=sample and sample.prompt_token_ids,
        completion_token_ids=sample and sample.output_token_ids,
        logprobs=sample and sample.output_logprobs,
    )
    return _step(step, "agent", step.content or "") | _set(
        model_name=step.model,
        reasoning_content=step.reasoning,
        tool_calls=[_call(call) for call in step.tool_calls] or None,
        metrics=metrics,
    )


def _call(call: ToolCall) -> dict[str, Any]:
    malformed = isinstance(call.arguments, str)
    return _set(
        tool_call_id=call.id,
        function_name=call.name,
        arguments={} if malformed else call.arguments,
        extra={"malformed_arguments": call.arguments} if malformed else None,
    )
