"""The older form, `async with hud.eval(task) as ctx:`: a run whose agent is the caller's code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hud.environment.templates.task import Provider
from hud.errors import RolloutError
from hud.eval.episode import bring_up, play, set_deadline, take_down
from hud.eval.job import Job
from hud.eval.rollout_failure import record_failure
from hud.eval.rollouts import check_limit
from hud.eval.run import Run
from hud.eval.runtimes.local import LocalRuntime
from hud.trace import new_id
from hud.trace.recording.recorder import Recorder

if TYPE_CHECKING:
    from hud.environment import Task

_KINDS = {kind.kind: kind for kind in RolloutError.__subclasses__()}


@asynccontextmanager
async def evaluate(
    task: Task,
    *,
    name: str | None = None,
    runtime: Provider | None = None,
    job: Job | None = None,
    group_id: str | None = None,
    rollout_timeout: float | None = None,
    recorder: Recorder | None = None,
) -> AsyncIterator[Run]:
    """Open `task`, yield its run, and grade it at the end, unless `agent.run(ctx)` did.

    `group_id`: group of the run; by default, the job's runs of one task are one group.

    Raises the errors of opening the environment. An exception of the caller's code fails the run as an agent's failure,
    and is raised again.
    """
    check_limit(rollout_timeout)
    provider = runtime if runtime is not None else LocalRuntime()
    opened = (
        job
        if job is not None
        else await Job.start(name or task.slug or task.id, planned=1, recorder=recorder)
    )
    # Attempts at one task in one job are a group, as with `Taskset.run(group=)`.
    earlier = [
        run
        for run in opened.runs
        if run.task == task and run.group_id is not None and group_id in (None, run.group_id)
    ]
    run = Run(
        task=task,
        job_id=opened.id,
        group_id=earlier[-1].group_id if earlier else group_id or new_id(),
        attempt=len(earlier),
        recorder=opened.recorder,
    )
    opened.recorder.run_started(run)
    opened.runs.append(run)
    set_deadline(run, rollout_timeout)
    try:
        await _bounded(run, provider)
        try:
            yield run
        except (Exception, asyncio.CancelledError) as error:
            if run.live.phase != "over":
                record_failure(run, error)
            raise
        if run.live.phase != "over":
            await play(run, None)
    finally:
        await take_down(run)
        if job is None:
            await opened.finish()
        else:
            await opened.recorder.flush()


async def _bounded(run: Run, provider: Provider) -> None:
    """Open the run's environment within its deadline, or raise the error."""
    limit = asyncio.timeout_at(run.live.deadline)
    try:
        async with limit:
            await bring_up(run, provider)
    except (Exception, asyncio.CancelledError) as error:
        record_failure(run, error, timed_out=limit.expired())
        assert run.failure_kind is not None
        raise _KINDS[run.failure_kind](run.error) from error
