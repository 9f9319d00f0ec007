"""`ForeignRun`: a run as a source reads it, with its job."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from hud.errors import FailureKind
from hud.trace.ids import trace_id_of
from hud.trace.recording.job_purpose import Purpose
from hud.trace.steps import Step, TraceStatus

JobStatus = Literal["running", "completed", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class ForeignJob:
    """The job of imported runs."""

    id: str
    """32 hexadecimal digits; see `job_id_of`."""
    name: str
    purpose: Purpose = "evaluation"
    group_size: int = 1
    benchmark: str | None = None
    status: JobStatus = "completed"
    created_at: datetime | None = None
    """None: the time of the import."""
    ended_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class ForeignRun:
    """A run of another system or store.

    Steps have tokens (`AgentStep.sample`) where the source has token ids; without them the run serves supervised training and
    judging only.
    """

    foreign_id: str
    """Name in the source: an id (UUID), or any text that is unique in it. The run's trace id is `trace_id_of(foreign_id)`."""
    steps: Sequence[Step | Mapping[str, Any]]
    """Steps in order, numbered by `Trace.record`, or their payloads (`hud.step.v1`)."""
    job: ForeignJob | None = None
    """None: one job for all runs of the import."""
    source: str | None = None
    """Format that the run was imported from first; None: this one."""
    group_id: str | None = None
    attempt: int = 0
    slug: str | None = None
    task: Mapping[str, Any] | None = None
    """The task's row."""
    model: str | None = None
    checkpoint: str | None = None
    status: TraceStatus | Literal["running"] = "completed"
    reward: float | None = None
    """None: not measured."""
    failure_kind: FailureKind | None = None
    error: str | None = None
    stop_reason: str | None = None
    content: str | None = None
    """The last answer."""
    grade: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] | None = None
    started_at: datetime | None = None
    """None: that of the first step."""
    ended_at: datetime | None = None
    """None: that of the last step."""
    may_train: bool = True
    """False: no training may use it."""
    counts: Mapping[str, Any] = field(default_factory=dict)
    """Turns, tokens and cost, by columns of `runs`, where they are not the sums of the steps."""

    @property
    def trace_id(self) -> str:
        """Id of the run in the store: the same for each import."""
        return trace_id_of(self.foreign_id)


def job_id_of(source: str, name: str) -> str:
    """Return the id that a job of this name always gets when it is imported from this source."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"hud.import:{source}:{name}").hex
