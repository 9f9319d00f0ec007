"""Imports of runs: a source's runs become journal lines, which the platform stores as those of its own recorders."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from hud.client import Client
from hud.client.recording import MemoryRecorder, bounded_count
from hud.errors import NotFoundError
from hud.exchange.foreign_runs import ForeignJob, ForeignRun
from hud.exchange.redaction import Redaction
from hud.trace.recorded_time import microseconds, now_microseconds
from hud.trace.recording.journal import encode_event, encode_json
from hud.trace.steps import AgentStep, Sample, Step, Usage, parse_step

BATCH_BYTES = 2 << 20
"""Size after which lines are sent, in bytes."""
_PAGE = 1000


@dataclass
class ImportedRuns:
    """Result of an import."""

    new: int = 0
    repeated: int = 0
    """Runs that the store had before."""
    redacted: int = 0
    """Texts that were replaced."""
    without_tokens: int = 0
    """Runs with turns of a model and without token ids."""
    jobs: dict[str, ForeignJob] = field(default_factory=dict)
    """Jobs of the runs, by id."""
    trace_ids: list[str] = field(default_factory=list)
    """Ids of the runs in the store, in the source's order."""


async def import_runs(
    client: Client, source: str, runs: Iterable[ForeignRun], job: ForeignJob
) -> ImportedRuns:
    """Store runs of `source`, the name of its entry point; those without a job are of `job`. Idempotent.

    A run that this store recorded itself stays as it is. An imported one takes over what its source has added. The policy of the source
    says what is redacted, before anything is sent.
    """
    policy = await client.get(f"/v2/sources/{source}/policy")
    redaction = Redaction(policy["redact"])
    shipment = _Shipment(client)
    result = ImportedRuns()
    stored: dict[str, set[str]] = {}
    new_jobs: list[ForeignJob] = []
    for run in runs:
        of_run = run.job or job
        if of_run.id not in result.jobs:
            result.jobs[of_run.id] = of_run
            recorded = await _recorded_runs(client, of_run.id)
            stored[of_run.id] = recorded or set()
            if recorded is None:
                shipment.lines.add_job(of_run)
                new_jobs.append(of_run)
        repeated = run.trace_id in stored[of_run.id]
        stored[of_run.id].add(run.trace_id)
        result.trace_ids.append(run.trace_id)
        result.repeated += repeated
        result.new += not repeated
        run = replace(redaction.run(run), may_train=policy["may_train"] and run.may_train)
        result.without_tokens += shipment.lines.add_run(run, of_run, source)
        await shipment.send(BATCH_BYTES)
    for of_run in new_jobs:
        shipment.lines.end_job(of_run)
    await shipment.send(0)
    result.redacted = redaction.replaced
    return result


async def _recorded_runs(client: Client, job_id: str) -> set[str] | None:
    """Return the trace ids of a job's runs; None without such a job."""
    trace_ids: set[str] = set()
    while True:
        parameters = {"limit": _PAGE, "offset": len(trace_ids)}
        try:
            page = await client.get(f"/v2/jobs/{job_id}/traces", params=parameters)
        except NotFoundError:
            return None
        trace_ids |= {row["trace_id"] for row in page["items"]}
        if not page["items"] or len(trace_ids) >= page["total"]:
            return trace_ids


class _Shipment:
    """Lines that wait to be sent."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.lines = ImportedLines()

    async def send(self, least: int) -> None:
        """Send the lines if they have more than `least` bytes; warns of those that cannot be stored."""
        if self.lines.size > least:
            refused = await self._client.ingest(self.lines.take())
            if refused:
                warnings.warn(
                    f"{len(refused)} events of the import could not be stored.", stacklevel=2
                )


class ImportedLines(MemoryRecorder):
    """Journal lines of imported jobs and runs."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def take(self) -> bytes:
        """Return and clear the lines."""
        self.size = 0
        return super().take()

    def add_job(self, job: ForeignJob) -> None:
        """Add the start of a job."""
        payload = {
            "name": job.name,
            "taskset_id": None,
            "benchmark": job.benchmark,
            "group_size": job.group_size,
            "purpose": job.purpose,
            "pid": None,
            "process_started": None,
            "host": None,
            "at": _microseconds(job.created_at) or now_microseconds(),
        }
        self._add(encode_event(b"J", job.id, 0, encode_json(payload)))

    def end_job(self, job: ForeignJob) -> None:
        """Add the end of a job, unless it runs elsewhere."""
        if job.status != "running":
            payload = {"status": job.status, "at": _microseconds(job.ended_at)}
            self._add(encode_event(b"Z", job.id, 0, encode_json(payload)))

    def add_run(self, run: ForeignRun, job: ForeignJob, source: str) -> bool:
        """Add a run of a job; returns whether it has turns of a model, and none of them has token ids."""
        steps = [step if isinstance(step, Step) else parse_step(dict(step)) for step in run.steps]
        columns = _columns(run, steps, job, source)
        self._add(encode_event(b"E", run.trace_id, 0, encode_json(columns)))
        turns = sampled = 0
        for step, recorded in zip(steps, run.steps, strict=True):
            sample = step.sample if isinstance(step, AgentStep) else None
            turns += isinstance(step, AgentStep)
            sampled += sample is not None
            if isinstance(recorded, Step):
                self.step_recorded(run.trace_id, recorded)
            else:
                self._add_payload(run.trace_id, step.step_id, recorded, sample)
        self._branches.pop(run.trace_id, None)
        return turns > 0 and not sampled

    def _add_payload(
        self, trace_id: str, number: int, payload: Mapping[str, Any], sample: Sample | None
    ) -> None:
        """Add a step in the form in which it was stored."""
        stored = {name: value for name, value in payload.items() if name != "sample"}
        if sample is not None and sample.prompt_chunks is not None:
            stored["sample"] = {"prompt_chunks": sample.prompt_chunks}
        line = encode_event(b"S", trace_id, number, encode_json(stored))
        self._add(line if sample is None else line + self._tokens(trace_id, number, sample))

    def _add(self, line: bytes) -> None:
        self.size += len(line)
        super()._add(line)


def _columns(run: ForeignRun, steps: list[Step], job: ForeignJob, source: str) -> Mapping[str, Any]:
    """Return the columns of a run."""
    ends = [step.ended_at or step.started_at for step in steps]
    started = run.started_at or min((step.started_at for step in steps), default=None)
    sampled = [step.sample for step in steps if isinstance(step, AgentStep) and step.sample]
    usage = Usage.total(
        [step.usage for step in steps if isinstance(step, AgentStep) and step.usage]
    )
    counts = {
        "turns": sum(isinstance(step, AgentStep) for step in steps),
        "prompt_tokens": bounded_count(usage.prompt_tokens),
        "completion_tokens": bounded_count(usage.completion_tokens),
        "cached_tokens": bounded_count(usage.cached_tokens),
        "cost_usd": usage.cost_usd,
        **run.counts,
    }
    return {
        "job_id": job.id,
        "group_id": run.group_id,
        "attempt": run.attempt,
        "source": run.source or source,
        "foreign_id": run.foreign_id,
        "may_train": None if run.may_train else False,
        "slug": run.slug,
        "task": run.task,
        "model": run.model,
        "checkpoint": run.checkpoint or (sampled[0].checkpoint if sampled else None),
        "status": run.status,
        "reward": run.reward,
        "failure_kind": run.failure_kind,
        "error": run.error,
        "stop_reason": run.stop_reason,
        "content": run.content,
        "grade": run.grade,
        "extra": run.extra,
        "step_count": len(steps),
        "started_at": _microseconds(started) or now_microseconds(),
        "ended_at": None
        if run.status == "running"
        else _microseconds(run.ended_at or max(ends, default=None)),
        **counts,
    }


def _microseconds(moment: datetime | None) -> int | None:
    return None if moment is None else microseconds(moment)
