"""The jobs of a trainer's worker process: one for each name, which stays open as long as the process."""

from __future__ import annotations

import asyncio

from hud.eval import Job

_jobs: dict[str, asyncio.Future[Job]] = {}


async def job_of(name: str) -> Job:
    """Return the job of this name, started at its first rollout in this process."""
    if name not in _jobs:
        _jobs[name] = asyncio.ensure_future(Job.start(name))
    return await _jobs[name]


def forget_jobs() -> None:
    """Start other jobs from now on, as after `HUD_HOME` has changed."""
    _jobs.clear()
