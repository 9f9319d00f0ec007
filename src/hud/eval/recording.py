"""`Recorder`: who is told what happens, as it happens.

The rollout path calls these methods in order and never waits for them; making things durable and shipping
them to a store is the recorder's business.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

from hud.trace import Step

if TYPE_CHECKING:
    from hud.eval.job import Job
    from hud.eval.run import Run


class Recorder(Protocol):
    """Hears of jobs, runs and steps. Methods return at once; `flush` waits until all of it is durable.

    A method may raise `StoreError` when nothing can be written any more: that stops the job.
    """

    def job_started(self, job: Job) -> None: ...

    def run_started(self, run: Run) -> None: ...

    def step_recorded(self, trace_id: str, step: Step) -> None: ...

    def run_ended(self, run: Run) -> None: ...

    def job_ended(self, job: Job) -> None: ...

    async def flush(self) -> None: ...


class NullRecorder:
    """Records nothing."""

    def job_started(self, job: Job) -> None:
        del job

    def run_started(self, run: Run) -> None:
        del run

    def step_recorded(self, trace_id: str, step: Step) -> None:
        del trace_id, step

    def run_ended(self, run: Run) -> None:
        del run

    def job_ended(self, job: Job) -> None:
        del job

    async def flush(self) -> None:
        return


def default_recorder() -> Recorder:
    """Return the recorder of this process: the platform's, in this process or over HTTP."""
    # By name: the client stands above this room, and loads a database that a library user may not need.
    client = importlib.import_module("hud.client")
    return cast(Recorder, client.recorder())
