"""`Recorder`: the interface through which rollouts record jobs, runs and steps.

Rollouts call these methods in order, and none blocks; durability and shipping are the implementation's. Jobs and runs are
protocols of their recorded fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from hud.errors import FailureKind
from hud.trace.recording.job_purpose import Purpose
from hud.trace.steps import Step, Trace


class RecordedGrade(Protocol):
    """The recorded part of a run's grade."""

    @property
    def raw(self) -> Mapping[str, Any]:
        """The environment's grade frame; empty for a run that was not graded."""


class RecordedRun(Protocol):
    """The recorded part of a run."""

    @property
    def trace_id(self) -> str: ...
    @property
    def job_id(self) -> str | None: ...
    @property
    def group_id(self) -> str | None: ...
    @property
    def attempt(self) -> int: ...
    @property
    def slug(self) -> str: ...
    @property
    def task(self) -> Any:
        """The task's row, a pydantic model."""

    @property
    def model(self) -> str | None: ...
    @property
    def trace(self) -> Trace: ...
    @property
    def grade(self) -> RecordedGrade: ...
    @property
    def reward(self) -> float | None: ...
    @property
    def failure_kind(self) -> FailureKind | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def started_at(self) -> datetime: ...
    @property
    def ended_at(self) -> datetime | None: ...


class RecordedJob(Protocol):
    """The recorded part of a job."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def taskset_id(self) -> str | None: ...
    @property
    def benchmark(self) -> str | None: ...
    @property
    def group(self) -> int: ...
    @property
    def planned(self) -> int | None: ...
    @property
    def taskset(self) -> str | None: ...
    @property
    def purpose(self) -> Purpose: ...
    @property
    def called_by(self) -> str | None: ...
    @property
    def called_as(self) -> str | None: ...
    @property
    def graded_from(self) -> str | None: ...
    @property
    def interrupted(self) -> bool: ...
    @property
    def concurrency(self) -> Mapping[str, Any] | None:
        """Limits in force below the user's; None: there were none."""


class Recorder(Protocol):
    """Recorder of jobs, runs and steps. Methods do not block; `flush` waits until everything recorded is durable.

    A method raises `StoreError` when recording has become impossible: that stops the job.
    """

    def job_started(self, job: RecordedJob) -> None:
        """Record a job at its start, and anew at its resumption and whenever its concurrency changes."""

    def run_started(self, run: RecordedRun) -> None: ...

    def step_recorded(self, trace_id: str, step: Step) -> None: ...

    def run_ended(self, run: RecordedRun) -> None: ...

    def job_ended(self, job: RecordedJob) -> None: ...

    async def flush(self) -> None: ...


class NullRecorder:
    """A recorder that discards everything."""

    def job_started(self, job: RecordedJob) -> None:
        del job

    def run_started(self, run: RecordedRun) -> None:
        del run

    def step_recorded(self, trace_id: str, step: Step) -> None:
        del trace_id, step

    def run_ended(self, run: RecordedRun) -> None:
        del run

    def job_ended(self, job: RecordedJob) -> None:
        del job

    async def flush(self) -> None:
        return
