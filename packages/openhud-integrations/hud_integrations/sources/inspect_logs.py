"""The source `inspect`: evaluation logs of Inspect, `NAME.eval` or `NAME.json`, by its package."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hud.errors import UsageError
from hud.exchange import ForeignJob, ForeignRun, RunSource
from hud.exchange.foreign_runs import job_id_of
from hud.trace.recorded_time import now
from hud.trace.steps import Usage
from hud_integrations.sources.chat_messages import read_messages
from hud_integrations.sources.conversations import Conversation
from hud_integrations.sources.json_lines import leading_rows, time_of


def is_log(path: Path) -> bool:
    """Return whether a file is a log."""
    if path.suffix == ".eval":
        return path.is_file() and zipfile.is_zipfile(path)
    return any({"eval", "samples", "status"} <= row.keys() for row in leading_rows(path)[:1])


def read_log(path: Path) -> Iterator[ForeignRun]:
    """Yield the run of each sample. Raises `UsageError` without Inspect's package."""
    if find_spec("inspect_ai") is None:
        raise UsageError("Reading logs of Inspect needs its package: pip install inspect-ai.")
    from inspect_ai.log import read_eval_log

    log = read_eval_log(str(path), resolve_attachments=True)
    spec = log.eval
    job = ForeignJob(
        id=job_id_of("inspect", spec.eval_id),
        name=spec.task,
        group_size=(spec.config.epochs if spec.config else None) or 1,
        created_at=time_of(spec.created),
        ended_at=time_of(log.stats.completed_at) if log.stats else None,
    )
    for sample in log.samples or []:
        yield _run(sample, spec, job)


def _run(sample: Any, spec: Any, job: ForeignJob) -> ForeignRun:
    conversation = Conversation(f"inspect:{spec.eval_id}:{sample.id}:{sample.epoch}", {})
    began = time_of(sample.started_at) or job.created_at
    conversation.add(_messages(sample), began or now())
    reward, grade = _grade(sample.scores or {})
    error = None if sample.error is None else sample.error.message
    usage = Usage.total([_usage(counts) for counts in (sample.model_usage or {}).values()])
    return conversation.run(
        job=job,
        group_id=job_id_of("inspect", f"{spec.eval_id}:{sample.id}"),
        attempt=max(0, sample.epoch - 1),
        slug=str(sample.id),
        task={"env": spec.task, "id": spec.task, "slug": str(sample.id), "args": {}},
        model=spec.model,
        reward=None if error else reward,
        grade=grade,
        error=error,
        status="completed" if error is None else "error",
        failure_kind=None if error is None else "infrastructure",
        content=sample.output.completion if sample.output and sample.output.choices else None,
        extra=sample.metadata or None,
        started_at=began,
        ended_at=time_of(sample.completed_at) or began,
        counts={
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
        },
    )


def _messages(sample: Any) -> list[dict[str, Any]]:
    return read_messages(
        [message.model_dump(mode="json", exclude_none=True) for message in sample.messages]
    )


def _grade(scores: dict[str, Any]) -> tuple[float | None, dict[str, Any] | None]:
    """Return the mean of a sample's scores, and the grade that lists them."""
    from inspect_ai.scorer._metric import value_to_float

    to_float = value_to_float()
    values: dict[str, float] = {}
    for name, score in scores.items():
        value = score.value
        listed = (
            value.values()
            if isinstance(value, dict)
            else value
            if isinstance(value, list)
            else [value]
        )
        numbers = [to_float(element) for element in listed]
        if numbers:
            values[name] = sum(numbers) / len(numbers)
    if not values:
        return None, None
    reward = sum(values.values()) / len(values)
    explained = [score.explanation for score in scores.values() if score.explanation]
    grade = {
        "score": reward,
        "subscores": [{"name": name, "value": value} for name, value in values.items()],
        "content": "\n".join(explained) or None,
    }
    return reward, grade


def _usage(counts: Any) -> Usage:
    return Usage(
        prompt_tokens=counts.input_tokens or 0,
        completion_tokens=counts.output_tokens or 0,
        cached_tokens=counts.input_tokens_cache_read or 0,
    )


inspect = RunSource(
    summary="an evaluation log of Inspect",
    recognizes=is_log,
    read=read_log,
)
