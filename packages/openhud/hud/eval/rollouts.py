"""`rollout`: a task played once, with the agent prepared before and attempts repeated that infrastructure broke.

The result is always a `Run`, with error and failure kind. `episode` has the order of an attempt.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hud.agents.agent_forms import as_agent
from hud.environment.templates.task import Player, Provider
from hud.errors import UsageError
from hud.eval.episode import attempt
from hud.eval.job import default_recorder
from hud.eval.run import Run
from hud.eval.runtimes.rollout_runtime import as_runtime
from hud.processes.backoff import Backoff
from hud.trace import Trace, new_id
from hud.trace.recording.recorder import Recorder

if TYPE_CHECKING:
    from hud.agents.agent import Agent
    from hud.environment import Task

RETRIES = 2
"""Retries of an attempt that failed on infrastructure."""
RETRY_PAUSES = Backoff(0.5, spread=0.5)


async def rollout(
    task: Task,
    agent: Player,
    *,
    runtime: Provider | None = None,
    job_id: str | None = None,
    group_id: str | None = None,
    trace_id: str | None = None,
    rollout_timeout: float | None = None,
    recorder: Recorder | None = None,
) -> Run:
    """Play `task` once with `agent` and return the run, graded or failed.

    `rollout_timeout` (seconds; one hour where None, no limit where infinite) covers everything but taking
    the environment down. Attempts that break on infrastructure are repeated; low rewards never are.
    """
    check_limit(rollout_timeout)
    async with prepared(agent, runtime) as player:
        recorder = recorder if recorder is not None else default_recorder()
        run = Run(
            task=task,
            trace=Trace(trace_id=trace_id or new_id()),
            job_id=job_id,
            group_id=group_id,
            recorder=recorder,
        )
        run = await carry_out(run, player, runtime, rollout_timeout)
        await recorder.flush()
    return run


async def carry_out(
    run: Run, agent: Agent, provider: Provider | None, rollout_timeout: float | None = None
) -> Run:
    """Carry `run` out in a runtime; returns its last attempt."""
    if agent.training_progress is not None:
        run.training_progress = agent.training_progress
    return await as_runtime(provider).play(run, agent, rollout_timeout)


async def play_here(
    run: Run,
    agent: Agent,
    provider: Provider,
    rollout_timeout: float | None = None,
    *,
    retries: int = RETRIES,
) -> Run:
    """Play `run` in this process, and repeat it under a new id while infrastructure breaks it; returns the last attempt."""
    for repeats in itertools.count(1):
        await attempt(run, agent, provider, rollout_timeout, last=repeats > retries)
        if "retried_as" not in run.trace.extra:
            break
        await asyncio.sleep(RETRY_PAUSES.seconds(repeats))
        run = run.successor()
    return run


async def prepare(agent: Player, provider: Provider | None = None) -> Agent:
    """Return the agent of a form, prepared for a batch of tasks.

    Its `UsageError`s and those of the runtime are raised.
    """
    player = as_agent(agent)
    as_runtime(provider).check_agent(player)
    for form in player.subagents.values():
        if not isinstance(form, str):
            as_agent(form)  # A wrong one is refused before the first run.
    await player.prepare()
    return player


@asynccontextmanager
async def prepared(agent: Player, provider: Provider | None = None) -> AsyncIterator[Agent]:
    """Prepare the agent of a form; one that is created here is closed at the end."""
    player = await prepare(agent, provider)
    try:
        yield player
    finally:
        if player is not agent:
            await player.aclose()


def check_limit(rollout_timeout: float | None) -> None:
    """Raise `UsageError` for a limit that is not positive."""
    if rollout_timeout is not None and not rollout_timeout > 0:
        raise UsageError(f"rollout_timeout must be positive, not {rollout_timeout:g}.")
