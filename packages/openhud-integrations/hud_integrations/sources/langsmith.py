"""The source `langsmith`: runs as LangSmith exports them, a row each; the runs of a model in one trace become a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hud.exchange import ForeignRun, RunSource
from hud.trace.steps import Usage
from hud_integrations.sources.chat_messages import read_messages
from hud_integrations.sources.conversations import ModelCall
from hud_integrations.sources.json_lines import leading_rows, rows_of, time_of
from hud_integrations.sources.openai_logs import answer_of, usage_of
from hud_integrations.sources.traced_calls import reward_of, runs_of_trace

_Row = dict[str, Any]


def is_export(path: Path) -> bool:
    """Return whether the first rows of a file are runs of LangSmith."""
    rows = leading_rows(path)
    return bool(rows) and all("run_type" in row and "inputs" in row for row in rows)


def read_export(path: Path) -> Iterator[ForeignRun]:
    """Yield a run for each trace of a file, and one for each further conversation in it."""
    traces: dict[str, list[_Row]] = defaultdict(list)
    for row in rows_of(path):
        traces[str(row.get("trace_id") or row["id"])].append(row)
    for trace_id, rows in traces.items():
        root = next((row for row in rows if not row.get("parent_run_id")), rows[0])
        models = [row for row in rows if row["run_type"] in ("llm", "chat_model")] or [root]
        reward, grade = reward_of([score for row in rows for score in _scores(row)])
        yield from runs_of_trace(
            trace_id,
            [_call(row) for row in models],
            slug=root.get("name"),
            reward=reward,
            grade=grade,
            started_at=time_of(root.get("start_time")),
            ended_at=time_of(root.get("end_time")),
        )


def _call(row: _Row) -> ModelCall:
    inputs, outputs = row.get("inputs") or {}, row.get("outputs") or {}
    extra = row.get("extra") or {}
    parameters = {**(extra.get("metadata") or {}), **(extra.get("invocation_params") or {})}
    answer, reason = answer_of(_answer(outputs))
    messages = inputs.get("messages", inputs.get("input", inputs.get("prompt", [])))
    if isinstance(messages, list) and messages and isinstance(messages[0], list):
        messages = messages[0]  # LangChain's batch of one.
    return ModelCall(
        id=str(row["id"]),
        messages=read_messages(messages),
        answer=answer or {"role": "assistant", "content": None},
        model=parameters.get("ls_model_name") or parameters.get("model"),
        usage=usage_of(outputs.get("usage_metadata") or outputs.get("usage")) or _counts(row),
        finish_reason=reason,
        started_at=time_of(row.get("start_time")),
        ended_at=time_of(row.get("end_time")),
        error=row.get("error"),
    )


def _answer(outputs: _Row) -> Any:
    """Return the message among a run's outputs: of LangChain's generations, of an answer of OpenAI, or of a graph's state."""
    generations = outputs.get("generations")
    while isinstance(generations, list) and generations:
        generations = generations[0]
    if isinstance(generations, dict):
        return generations.get("message") or str(generations.get("text") or "")
    for name in ("output", "messages", "message", "content"):
        if outputs.get(name):
            return outputs[name]
    return outputs


def _counts(row: _Row) -> Usage | None:
    prompt, completion = row.get("prompt_tokens"), row.get("completion_tokens")
    if prompt is None and completion is None:
        return None
    return Usage(prompt_tokens=prompt or 0, completion_tokens=completion or 0)


def _scores(row: _Row) -> list[_Row]:
    listed = [score for score in row.get("feedback") or [] if isinstance(score, dict)]
    averages = [
        {"key": key, "score": stats.get("avg")}
        for key, stats in (row.get("feedback_stats") or {}).items()
        if isinstance(stats, dict)
    ]
    return listed or averages


langsmith = RunSource(
    summary="runs that LangSmith exports, a row each",
    recognizes=is_export,
    read=read_export,
)
