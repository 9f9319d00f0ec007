"""Routes of traces.

GET /v2/trace/{id}                   GET /v2/trace/{id}/events      GET /v2/trace/{id}/full
GET /v2/trace/{id}/spans             POST /v2/trace/full
POST /v2/trace/job/{job_id}/enter    POST /v2/trace/{id}/enter      POST /v2/trace/{id}/exit
GET /v2/trace/{id}/outcomes          POST /v2/trace/{id}/outcome
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from hud import exact_json
from hud.trace import ToolResult, TraceStatus, plain, text_of, trace_id_of
from hud.trace.content import Message
from hud.trace.foreign_steps import understood
from hud_platform.dependencies import READ, RUN, Limit, Offset, StorePart, StrictBody, Team
from hud_platform.store import outcomes, records, reporting
from hud_platform.store.queries import IDS_AT_ONCE

FULL_BYTES = 16 << 20
"""Size after which an answer with whole traces ends."""

router = APIRouter(prefix="/v2/trace", tags=["traces"], dependencies=READ)


class JobEntered(BaseModel):
    """Report of a job's start."""

    name: str = "job"
    group: int = 1
    planned: int | None = Field(default=None, ge=0, lt=2**31)
    """Number of runs that the job will have."""
    taskset_id: str | None = None


class RunEntered(BaseModel):
    """Report of a run's start."""

    job_id: str | None = None
    group_id: str | None = None
    task_slug: str | None = None
    model: str | None = None


class RunExited(BaseModel):
    """Report of a run's end."""

    status: TraceStatus = "completed"
    reward: float | None = None
    error: str | None = None
    evaluation_result: dict[str, Any] | None = None
    stop_reason: str | None = None
    metadata: dict[str, Any] | None = None


@router.post("/job/{job_id}/enter", dependencies=RUN)
def enter_job(store: StorePart, team: Team, job_id: str, body: JobEntered) -> dict[str, str]:
    """Record the start of a job. Idempotent."""
    taskset = plain(body.taskset_id) if body.taskset_id is not None else None
    with store.begin() as connection:
        reporting.enter_job(
            connection, team, plain(job_id), body.name, body.group, taskset, planned=body.planned
        )
    return {"id": plain(job_id)}


@router.post("/{trace_id}/enter", dependencies=RUN)
def enter_trace(store: StorePart, team: Team, trace_id: str, body: RunEntered) -> dict[str, str]:
    """Record the start of a run; its end may have been reported before."""
    columns = body.model_dump(exclude_none=True)
    if "task_slug" in columns:
        columns["slug"] = columns.pop("task_slug")
    for name in {"job_id", "group_id"} & columns.keys():
        columns[name] = plain(columns[name])
    reporting.run_entered(store, team, trace_id_of(trace_id), columns)
    return {"id": trace_id_of(trace_id)}


@router.post("/{trace_id}/exit", dependencies=RUN)
def exit_trace(store: StorePart, team: Team, trace_id: str, body: RunExited) -> dict[str, str]:
    """Record the end of a run; its start may be reported later, or never."""
    reporting.run_exited(store, team, trace_id_of(trace_id), **body.model_dump())
    return {"id": trace_id_of(trace_id)}


class OutcomeReported(StrictBody):
    """Report of an outcome."""

    name: str
    value: float
    source: str | None = None
    """Reporter of the value, such as a person or a system."""
    supersedes: str | None = None
    """Id of an earlier outcome that this one corrects."""


@router.post("/{trace_id}/outcome", dependencies=RUN)
def add_outcome(
    store: StorePart, team: Team, trace_id: str, body: OutcomeReported
) -> dict[str, Any]:
    """Add an outcome to a run; returns it, with the run's reward after it."""
    run = records.find_run(store, team, trace_id)
    return outcomes.add_outcome(
        store,
        team,
        run["trace_id"],
        body.name,
        body.value,
        source=body.source,
        supersedes=body.supersedes,
    )


@router.get("/{trace_id}/outcomes")
def list_outcomes(store: StorePart, team: Team, trace_id: str) -> dict[str, Any]:
    """The outcomes of a run, oldest first."""
    run = records.find_run(store, team, trace_id)
    return {"items": outcomes.outcomes_of(store, run["trace_id"]), "reward": run["reward"]}


@router.get("/{trace_id}")
def get_trace(store: StorePart, team: Team, trace_id: str) -> dict[str, Any]:
    """The run: task, status, reward, error and counts."""
    run = records.find_run(store, team, trace_id)
    return {**run, "evaluation_result": run["grade"]}


@router.get("/{trace_id}/full")
def get_full_trace(store: StorePart, team: Team, trace_id: str) -> dict[str, Any]:
    """The run and its whole trace: `{run, trace, spans}`, every step with its tokens; `spans` is their number."""
    run = records.find_run(store, team, trace_id)
    _, spans = records.trace_spans(store, run["team_id"], run["trace_id"], 0, 0)
    return {"run": run, "trace": records.whole_trace(store, run), "spans": spans}


class TracesRequested(StrictBody):
    """Request for whole traces."""

    trace_ids: list[str] = Field(min_length=1, max_length=IDS_AT_ONCE)


@router.post("/full")
def get_full_traces(store: StorePart, team: Team, body: TracesRequested) -> Response:
    """The first of these runs with their whole traces: `{items: [{run, trace}]}`, at least one and up to 16 MiB; ask again for the rest."""
    items: list[bytes] = []
    size = 0
    for run, trace in records.recorded_runs(store, team, body.trace_ids):
        items.append(exact_json.dumps({"run": run, "trace": trace}))
        size += len(items[-1])
        if size > FULL_BYTES:
            break
    return Response(b'{"items":[%b]}' % b",".join(items), media_type="application/json")


@router.get("/{trace_id}/spans")
def get_spans(
    store: StorePart, team: Team, trace_id: str, limit: Limit = 100, offset: Offset = 0
) -> dict[str, Any]:
    """Spans of clients that are not steps, as received: robots, changed files, timed functions."""
    run = records.find_run(store, team, trace_id)
    items, total = records.trace_spans(store, run["team_id"], run["trace_id"], limit, offset)
    return {"items": items, "total": total}


@router.get("/{trace_id}/events")
def get_events(store: StorePart, team: Team, trace_id: str) -> dict[str, Any]:
    """The trace as a list of events: messages, tool calls and results."""
    run = records.find_run(store, team, trace_id)
    events = [
        event
        for step in records.trace_steps(store, run["team_id"], run["trace_id"])
        for event in _events(understood(step))
    ]
    return {"events": events}


def _events(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    error = step.get("error")
    if step.get("source") == "agent":
        yield {
            "kind": "agent_message",
            "text": step.get("content"),
            "reasoning": step.get("reasoning"),
            "tool_calls": step.get("tool_calls", []),
            "error": error,
        }
    elif step.get("source") == "tool":
        call = step.get("call") or {}
        result = ToolResult.model_validate(step.get("result") or {})
        yield {
            "kind": "tool_call",
            "tool_name": call.get("name"),
            "arguments": call.get("arguments"),
            "result_text": result.text,
            "error": error or (result.text if result.is_error else None),
        }
    elif step.get("source") == "user":
        text = "\n".join(
            text_of(Message.model_validate(message).content) for message in step.get("messages", [])
        )
        yield {"kind": "environment", "text": text}
    elif error:
        yield {"kind": "environment", "text": error, "error": error}
