"""The recorder: events become lines of a journal, which a thread ships to the platform.

Hot path: recording an event costs its encoding and, once per iteration of the event loop, one `write`. See
docs/decisions/0001-journal-before-store.md.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hud.client.client import Client
from hud.client.shipping import Shipper, UnstoredShipper
from hud.errors import StoreError
from hud.processes.presence import process_started
from hud.trace import TOOL_CALLS, AgentStep, Sample, Step, Trace, tool_counts
from hud.trace.recorded_time import microseconds, now_microseconds
from hud.trace.recording.journal import encode_event, encode_json, encode_step
from hud.trace.recording.recorder import RecordedJob, RecordedRun
from hud.trace.sampled.open_sequences import OpenSequences

WRITE_BYTES = 1 << 17
"""Recorded bytes after which they are written before the event loop's iteration ends: one may play hundreds of rollouts."""
MAX_COUNT = 2**31 - 1
"""Largest token count in a run's columns."""
MOST_BRANCHES = 64
"""Turns of a run whose prompt and output are kept, to store later prompts as their difference to one of them."""

_open: weakref.WeakSet[JournalRecorder] = weakref.WeakSet()


class EventRecorder(ABC):
    """Encoder of recorded events as journal lines; subclasses store them."""

    def __init__(self) -> None:
        self._branches: dict[str, OpenSequences[int]] = {}
        """By trace, of the runs in progress: the steps whose prompt and output a prompt may continue."""
        self._openings: dict[str, dict[str, Any]] = {}
        """By trace, of the runs in progress."""

    def job_started(self, job: RecordedJob) -> None:
        # Subagents' jobs end with their runs; no process records their end.
        pid = os.getpid() if job.called_by is None else None
        payload = {
            "name": _text(job.name),
            "taskset": _text(job.taskset),
            "taskset_id": job.taskset_id,
            "benchmark": _text(job.benchmark),
            "group_size": job.group,
            "planned": job.planned,
            "purpose": job.purpose,
            "called_as": _text(job.called_as),
            "called_by": job.called_by,
            "graded_from": job.graded_from,
            "concurrency": job.concurrency,
            "pid": pid,
            "process_started": None if pid is None else process_started(pid),
            "host": socket.gethostname(),
            "at": now_microseconds(),
        }
        self._add(encode_event(b"J", job.id, 0, encode_json(payload)))

    def job_ended(self, job: RecordedJob) -> None:
        status = "interrupted" if job.interrupted else "completed"
        self._add(
            encode_event(b"Z", job.id, 0, encode_json({"status": status, "at": now_microseconds()}))
        )

    def run_started(self, run: RecordedRun) -> None:
        opening = self._openings[run.trace_id] = _opening(run)
        self._add(encode_event(b"R", run.trace_id, 0, encode_json(opening)))

    def step_recorded(self, trace_id: str, step: Step) -> None:
        sample = step.sample if isinstance(step, AgentStep) else None
        line = encode_event(b"S", trace_id, step.step_id, encode_step(step))
        if sample is not None:
            line += self._tokens(trace_id, step.step_id, sample)
        self._add(line)

    def run_ended(self, run: RecordedRun) -> None:
        self._branches.pop(run.trace_id, None)
        opening = self._openings.pop(run.trace_id, None)
        trace, grade, usage = run.trace, run.grade, run.trace.usage
        payload = {
            **(opening or _opening(run)),
            "model": _text(run.model),
            "status": _text(trace.status),
            "reward": run.reward,
            "checkpoint": _text(_checkpoint(trace.steps)),
            "failure_kind": run.failure_kind,
            "error": _text(run.error),
            "stop_reason": _text(trace.stop_reason),
            "content": _text(trace.content),
            "grade": grade.raw or None,
            "extra": _extra(trace) or None,
            "step_count": len(trace.steps),
            "turns": usage.llm_call_count,
            "prompt_tokens": bounded_count(usage.prompt_tokens),
            "completion_tokens": bounded_count(usage.completion_tokens),
            "cached_tokens": bounded_count(usage.cached_tokens),
            "cost_usd": usage.cost_usd,
            "ended_at": None if run.ended_at is None else microseconds(run.ended_at),
        }
        self._add(encode_event(b"E", run.trace_id, 0, encode_json(payload)))

    @abstractmethod
    def _add(self, line: bytes) -> None:
        """Take a line."""

    def _tokens(self, trace_id: str, step_id: int, sample: Sample) -> bytes:
        branches = self._branches.setdefault(trace_id, OpenSequences(MOST_BRANCHES))
        prompt = sample.prompt_token_ids
        before = branches.take(prompt, sample.pictures)
        branches.add(prompt + sample.output_token_ids, sample.pictures, step_id)
        start = 0 if before is None else len(before.tokens)
        pictures = [picture for picture in sample.pictures if picture.start >= start]
        payload: dict[str, Any] = {
            "extends": None if before is None else before.value,
            "prompt": prompt[start:],
            "output": sample.output_token_ids,
            "logprobs": sample.output_logprobs,
            "checkpoint": _text(sample.checkpoint),
            "swaps": sample.swaps,
            "temperature": sample.temperature,
        }
        if sample.excluded is not None:
            payload["excluded"] = sample.excluded
        if pictures:
            payload["pictures"] = [picture.model_dump() for picture in pictures]
        return encode_event(b"T", trace_id, step_id, encode_json(payload))


def _extra(trace: Trace) -> dict[str, Any]:
    """Return the trace's further data with the counts of its tool calls."""
    counts = tool_counts(trace.steps)
    return trace.extra if counts is None else {**trace.extra, TOOL_CALLS: counts}


class MemoryRecorder(EventRecorder):
    """Recorder that keeps the lines in memory, for a process that forwards them."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[bytes] = []

    def take(self) -> bytes:
        """Return and clear the recorded lines."""
        lines, self._lines = self._lines, []
        return b"".join(lines)

    async def flush(self) -> None:
        """No effect: lines are not shipped from here."""

    def _add(self, line: bytes) -> None:
        self._lines.append(line)


class JournalRecorder(EventRecorder):
    """Recorder to a journal in `folder`, shipped through `client`. Thread-safe."""

    shipper_type = Shipper

    def __init__(self, folder: Path, client: Client) -> None:
        super().__init__()
        self.closed = False
        self.client = client
        self._shipper = self.shipper_type(folder, client)
        self._lock = threading.Lock()
        self._buffer: list[bytes] = []
        self._size = 0
        """Bytes in the buffer."""
        self._scheduled: asyncio.AbstractEventLoop | None = None
        """The event loop at whose next iteration the buffer is written."""
        self._failure: StoreError | None = None
        _open.add(self)
        atexit.register(self.close)

    async def flush(self) -> None:
        """Wait until all recorded events are in the store; raises `StoreError` on failure."""
        if self.closed:
            return
        self._write()
        if self._failure is not None:
            raise self._failure
        await self._shipper.flush()

    async def collect(self) -> None:
        """Wait until everything that dead processes of this home recorded is in the store. Raises `HudError` if it is not."""
        await self._shipper.collect()

    def close(self) -> None:
        """Ship the remaining events and close the journal; unshipped events remain in it."""
        if self.closed:
            return
        self._write()
        self.closed = True
        atexit.unregister(self.close)
        self._shipper.close()

    def abandon(self) -> None:
        """Detach in a forked child: the journal belongs to its parent."""
        self.closed = True
        self._buffer.clear()
        self._size = 0
        atexit.unregister(self.close)
        self._shipper.abandon()

    # -- inside -------------------------------------------------------------------------------------

    def _add(self, line: bytes) -> None:
        """Queue a line; those of an event-loop iteration are written together, at its end or once they are many."""
        if self.closed:
            raise StoreError("This recorder was closed; open another with hud.client.recorder().")
        with self._lock:
            self._buffer.append(line)
            self._size += len(line)
        # After a failure, the disk may have room again.
        if self._size > WRITE_BYTES or self._failure is not None:
            self._write()
        if self._failure is not None:
            raise self._failure
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._write()
        else:
            if self._scheduled is None:
                self._scheduled = loop
                loop.call_soon(self._write)
            elif self._scheduled is not loop:
                # Another thread's loop, or one that was stopped within the iteration.
                self._write()
        if self._failure is not None:
            raise self._failure

    def _write(self) -> None:
        with self._lock:
            self._scheduled = None
            if not self._buffer:
                return
            try:
                self._shipper.append(b"".join(self._buffer))
            except StoreError as error:
                # The lines stay in the buffer; the error is raised to the caller, and the next event retries.
                self._failure = error
                return
            self._failure = None
            self._buffer.clear()
            self._size = 0


class UnstoredRecorder(JournalRecorder):
    """Recorder of an audit, from which nothing is stored."""

    shipper_type = UnstoredShipper

    async def flush(self) -> None:
        """No effect: nothing is shipped."""


def _opening(run: RecordedRun) -> dict[str, Any]:
    """Fields of a run at its start."""
    return {
        "job_id": run.job_id,
        "group_id": run.group_id,
        "attempt": run.attempt,
        "slug": _text(run.slug),
        "task": _task(run.task),
        "model": _text(run.model),
        "started_at": microseconds(run.started_at),
    }


def _checkpoint(steps: Sequence[Step]) -> str | None:
    """The checkpoint whose weights sampled the first turn."""
    samples = (step.sample for step in steps if isinstance(step, AgentStep))
    return next((sample.checkpoint for sample in samples if sample is not None), None)


def _task(task: Any) -> Any:
    row = task.__pydantic_serializer__.to_python(task, mode="json", exclude_none=True)
    forms = task.equal_args
    if not forms:
        return row  # The defaults of its template are unknown.
    return {**row, "equal_args": [form for form in forms if form != task.args]}


def _text(value: Any) -> str | None:
    """Return a value set by an agent or a caller as text for its column."""
    return value if value is None or isinstance(value, str) else repr(value)


def bounded_count(value: int) -> int:
    """Return a count limited to its column's range: an absurd count of a server must not lose the run."""
    return max(0, min(value, MAX_COUNT))


def _abandon_all() -> None:
    for recorder in list(_open):
        if not recorder.closed:
            recorder.abandon()


# A forked child must not ship or truncate its parent's journal, or hold its lock.
os.register_at_fork(after_in_child=_abandon_all)
