"""The older form, `async with hud.eval(task) as ctx:`: a run whose middle is the caller's code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hud.environment.templates.task import Provider
from hud.errors import RolloutError
from hud.eval.job import Job
from hud.eval.rollouts import bring_up, check_limit, set_deadline, settle, take_down
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
    """Bring `task` up, yield its run, and grade it at the end, unless `agent.run(ctx)` already had it graded.

    `group_id`: the group of the run; by default, the job's runs of one task are one group.

    Raises what keeps the environment from coming up; an exception of the caller's code fails the run as the
    agent's fault, and passes on.
    """
    check_limit(rollout_timeout)
    provider = runtime if runtime is not None else LocalRuntime()
    opened = (
        job if job is not None else await Job.start(name or task.slug or task.id, recorder=recorder)
    )
    # Attempts at one task in one job are compared with each other, as those of `Taskset.run(group=)` are.
    earlier = [
        one
        for one in opened.runs
        if one.task == task and one.group_id is not None and group_id in (None, one.group_id)
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
                settle(run, error)
            raise
        if run.live.phase != "over":
            await run.play(_already_played)
    finally:
        await take_down(run)
        if job is None:
            await opened.finish()
        else:
            await opened.recorder.flush()


async def _bounded(run: Run, provider: Provider) -> None:
    """Bring the run's environment up within its deadline, or raise what kept it from coming up."""
    limit = asyncio.timeout_at(run.live.deadline)
    try:
        async with limit:
            await bring_up(run, provider)
    except (Exception, asyncio.CancelledError) as error:
        settle(run, error, timed_out=limit.expired())
        assert run.failure_kind is not None
        raise _KINDS[run.failure_kind](run.error) from error


async def _already_played(run: Run) -> None:
    """The caller's code was the agent."""
    del run
