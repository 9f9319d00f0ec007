"""The recorder: a journal for durability, and a thread that ships it to the platform in batches.

Hot path: recording an event is encoding it and, once for each turn of the event loop, one `write`. See
docs/decisions/0001-journal-before-store.md.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from hud.client.client import Client
from hud.errors import HudError, StoreError
from hud.trace import AgentStep, Sample, Step
from hud.trace.columns import added_prompt
from hud.trace.journal import Journal, encode_event

if TYPE_CHECKING:
    from hud.eval.job import Job
    from hud.eval.run import Run

BATCH_BYTES = 4 << 20
SHIP_EVERY_SECONDS = 0.05
KEEP_BYTES = 1 << 20
"""The journal is emptied when the store has all of it and it has grown beyond this."""


class JournalRecorder:
    """Records to the journal of one `HUD_HOME`, and ships it through `client`."""

    def __init__(self, home: Path, client: Client) -> None:
        self.home = home
        self.closed = False
        self._client = client
        self._lock = threading.Lock()
        self._buffer: list[bytes] = []
        self._scheduled = False
        self._last_prompt: dict[str, tuple[int, list[int]]] = {}
        self._failure: StoreError | None = None
        self._journal = Journal(home)
        self._shipped = 0
        self._waiting: list[Future[None]] = []
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._ship, name="hud-recorder", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # -- events -------------------------------------------------------------------------------------

    def job_started(self, job: Job) -> None:
        payload = {
            "name": job.name,
            "taskset_id": job.taskset_id,
            "group_size": job.group,
            "pid": os.getpid(),
            "process_started": process_started(os.getpid()),
            "host": socket.gethostname(),
            "at": _now(),
        }
        self._add(encode_event(b"J", job.id, 0, orjson.dumps(payload)))

    def job_ended(self, job: Job) -> None:
        status = "interrupted" if job.interrupted else "completed"
        self._add(encode_event(b"Z", job.id, 0, orjson.dumps({"status": status, "at": _now()})))

    def run_started(self, run: Run) -> None:
        self._add(encode_event(b"R", run.trace_id, 0, orjson.dumps(_opening(run))))

    def step_recorded(self, trace_id: str, step: Step) -> None:
        sample = step.sample if isinstance(step, AgentStep) else None
        exclude = {"sample"} if sample is not None else None
        payload = step.__pydantic_serializer__.to_json(step, exclude_none=True, exclude=exclude)
        line = encode_event(b"S", trace_id, step.step_id, payload)
        if sample is not None:
            line += self._tokens(trace_id, step.step_id, sample)
        self._add(line)

    def run_ended(self, run: Run) -> None:
        self._last_prompt.pop(run.trace_id, None)
        trace, grade, usage = run.trace, run.grade, run.trace.usage
        payload = {
            **_opening(run),
            "status": trace.status,
            "reward": run.reward,
            "failure_kind": run.failure_kind,
            "error": run.error,
            "stop_reason": trace.stop_reason,
            "content": trace.content,
            "grade": grade.raw or None,
            "extra": trace.extra or None,
            "step_count": len(trace.steps),
            "turns": usage.llm_call_count,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "cost_usd": usage.cost_usd,
            "ended_at": None if run.ended_at is None else round(run.ended_at.timestamp() * 1e6),
        }
        self._add(encode_event(b"E", run.trace_id, 0, orjson.dumps(payload, default=str)))

    async def flush(self) -> None:
        """Wait until everything recorded is in the store; raises `StoreError` if it cannot be."""
        self._write()
        if self._failure is not None:
            raise self._failure
        waiter: Future[None] = Future()
        with self._lock:
            if self._shipped == self._journal.size:
                return
            self._waiting.append(waiter)
        self._wake.set()
        await asyncio.wrap_future(waiter)

    def close(self) -> None:
        """Ship what is left, and close the journal; what could not be shipped stays in it."""
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self.close)
        self._write()
        self._wake.set()
        self._thread.join(timeout=60)
        self._journal.close()

    # -- inside -------------------------------------------------------------------------------------

    def _tokens(self, trace_id: str, step_id: int, sample: Sample) -> bytes:
        before = self._last_prompt.get(trace_id)
        prompt = sample.prompt_token_ids
        added = added_prompt(before[1] if before else None, prompt)
        self._last_prompt[trace_id] = (step_id, prompt + sample.output_token_ids)
        payload: dict[str, Any] = {
            "extends": before[0] if before and added is not None else None,
            "prompt": prompt if added is None else added,
            "output": sample.output_token_ids,
            "logprobs": sample.output_logprobs,
            "checkpoint": sample.checkpoint,
            "temperature": sample.temperature,
        }
        return encode_event(b"T", trace_id, step_id, orjson.dumps(payload))

    def _add(self, line: bytes) -> None:
        """Queue a line; everything of one turn of the event loop is written at its end, in one call."""
        if self._failure is not None:
            raise self._failure
        self._buffer.append(line)
        if self._scheduled:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._write()
            return
        self._scheduled = True
        loop.call_soon(self._write)

    def _write(self) -> None:
        self._scheduled = False
        if not self._buffer:
            return
        data = b"".join(self._buffer)
        with self._lock:
            try:
                self._journal.append(data)
            except StoreError as error:
                # The lines stay in the buffer; whoever records or flushes next is told.
                self._failure = error
                return
        self._buffer.clear()
        if not self._wake.is_set() and self._journal.size - self._shipped > BATCH_BYTES:
            self._wake.set()

    def _ship(self) -> None:
        """Ship what was written, batch by batch, until closed. Runs in a thread with an event loop of its own."""
        with asyncio.Runner() as runner:
            while True:
                closing = self.closed
                while self._pending():
                    try:
                        runner.run(self._ship_batch())
                    except HudError as error:
                        self._give_up(error)
                        return
                self._release()
                if closing:
                    return
                self._wake.wait(SHIP_EVERY_SECONDS)
                self._wake.clear()

    def _pending(self) -> bool:
        with self._lock:
            return self._shipped < self._journal.size

    async def _ship_batch(self) -> None:
        with self._lock:
            batch = self._journal.read(self._shipped, BATCH_BYTES)
        await self._client.post("/v2/ingest", batch, retry=True)
        with self._lock:
            self._shipped += len(batch)
            if self._shipped == self._journal.size and (self._shipped > KEEP_BYTES or self.closed):
                self._journal.clear()
                self._shipped = 0

    def _release(self) -> None:
        with self._lock:
            done = self._shipped == self._journal.size
            waiting, self._waiting = (self._waiting, []) if done else ([], self._waiting)
            if done and self.closed:
                self._journal.clear()
                self._shipped = 0
        for waiter in waiting:
            waiter.set_result(None)

    def _give_up(self, error: HudError) -> None:
        """The store refuses: the journal keeps everything, and whoever records or flushes next is told."""
        self._failure = error if isinstance(error, StoreError) else StoreError(str(error))
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.set_exception(self._failure)


def process_started(pid: int) -> str | None:
    """Return when a process of this machine started, as its kernel counts; None if it is gone or unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _opening(run: Run) -> dict[str, Any]:
    """What is known of a run from its start."""
    return {
        "job_id": run.job_id,
        "group_id": run.group_id,
        "attempt": run.attempt,
        "slug": run.slug,
        "task": _task(run.task),
        "model": run.model,
        "started_at": round(run.started_at.timestamp() * 1e6),
    }


def _task(task: Any) -> Any:
    return task.__pydantic_serializer__.to_python(task, mode="json", exclude_none=True)


def _now() -> int:
    return time.time_ns() // 1000
