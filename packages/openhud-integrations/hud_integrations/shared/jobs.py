"""Jobs of other libraries' loops, which begin with their first rollout and stay open as long as the process."""

from __future__ import annotations

import asyncio
from typing import Any

from hud.eval import Job
from hud.trace.recording.job_purpose import Purpose


class JobOnDemand:
    """A job that is started once, however many rollouts begin at the same time. Belongs to one event loop."""

    def __init__(self, name: str, **settings: Any) -> None:
        """`settings`: those of `Job.start`."""
        self._name, self._settings = name, settings
        self._lock = asyncio.Lock()
        self._job: Job | None = None

    async def get(self) -> Job:
        """Return the job, started at the first call."""
        async with self._lock:
            if self._job is None:
                self._job = await Job.start(self._name, **self._settings)
            return self._job


_jobs: dict[str, JobOnDemand] = {}


async def job_of(name: str, purpose: Purpose = "evaluation") -> Job:
    """Return the job of this name in this process, started at its first rollout."""
    return await _jobs.setdefault(name, JobOnDemand(name, purpose=purpose)).get()


def forget_jobs() -> None:
    """Start other jobs from now on, as after `HUD_HOME` has changed."""
    _jobs.clear()
