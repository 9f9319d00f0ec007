"""Routes of traces.

GET /v2/trace/{id}      GET /v2/trace/{id}/events      GET /v2/trace/{id}/full
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request

from hud.platform.store import reading
from hud.trace import ToolResult, text_of
from hud.trace.content import Message

router = APIRouter(prefix="/v2/trace")


@router.get("/{trace_id}")
def get_trace(request: Request, trace_id: str) -> dict[str, Any]:
    """The run: status, reward, error and what it was."""
    run = reading.find_run(request.app.state.platform.store, trace_id)
    return {**run, "evaluation_result": run["grade"]}


@router.get("/{trace_id}/full")
def get_full_trace(request: Request, trace_id: str) -> dict[str, Any]:
    """The run and its whole trace: `{run, trace}`, every step with its tokens."""
    store = request.app.state.platform.store
    run = reading.find_run(store, trace_id)
    trace = {
        "trace_id": run["trace_id"],
        "steps": reading.trace_steps(store, run["trace_id"]),
        "status": run["status"] if run["status"] != "running" else "cancelled",
        "stop_reason": run["stop_reason"],
        "content": run["content"],
        "extra": run["extra"] or {},
    }
    return {"run": run, "trace": trace}


@router.get("/{trace_id}/events")
def get_events(request: Request, trace_id: str) -> dict[str, Any]:
    """The trace as a list of what was said and done."""
    store = request.app.state.platform.store
    run = reading.find_run(store, trace_id)
    events = [
        event for step in reading.trace_steps(store, run["trace_id"]) for event in _events(step)
    ]
    return {"events": events}


def _events(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    error = step.get("error")
    if step["source"] == "agent":
        yield {
            "kind": "agent_message",
            "text": step.get("content"),
            "reasoning": step.get("reasoning"),
            "tool_calls": step.get("tool_calls", []),
            "error": error,
        }
    elif step["source"] == "tool":
        call = step.get("call") or {}
        result = ToolResult.model_validate(step.get("result") or {})
        yield {
            "kind": "tool_call",
            "tool_name": call.get("name"),
            "arguments": call.get("arguments"),
            "result_text": result.text,
            "error": error or (result.text if result.is_error else None),
        }
    elif step["source"] == "user":
        text = "\n".join(
            text_of(Message.model_validate(message).content) for message in step.get("messages", [])
        )
        yield {"kind": "environment", "text": text}
    elif error:
        yield {"kind": "environment", "text": error, "error": error}
