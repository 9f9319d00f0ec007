"""`rollout`: one attempt, from opening the environment to closing it.

    provision ─► task (setup) ─► user ─► agent and tool steps ─► task (evaluate) ─► close

The result is always a `Run`, with error and failure kind; only cancellation, a store that cannot be written and an
unusable runtime are raised. Every wait has a time-out.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hud.agents.agent_forms import as_agent
from hud.environment.templates.runtime_config import run_seconds_of
from hud.environment.templates.task import Player, Provider
from hud.errors import FailureKind, RefusedError, RolloutError, StoreError, UsageError, located
from hud.eval.grade import Grade
from hud.eval.job import default_recorder
from hud.eval.process_mark import process_mark
from hud.eval.run import Phase, Run
from hud.eval.runtimes.rollout_runtime import as_runtime
from hud.foreign_code import is_failure, withdraw_cancellation
from hud.foreign_tasks import exits_contained
from hud.processes.backoff import Backoff
from hud.trace import Step, Trace, new_id, now
from hud.trace.recording.instrument import instrumented
from hud.trace.recording.recorder import Recorder

if TYPE_CHECKING:
    from hud.agents.agent import Agent
    from hud.environment import Task

ROLLOUT_SECONDS = 3600.0
"""Default time limit of a rollout, in seconds: a hung episode must not block a job."""
CLOSE_SECONDS = 30.0
"""Limit for taking an environment down."""
RETRIES = 2
"""Retries of an attempt that failed on infrastructure."""
RETRY_PAUSES = Backoff(0.5, spread=0.5)

_BLAME: dict[Phase, FailureKind] = {
    "provision": "infrastructure",
    "setup": "environment",
    "agent": "agent",
    "tool": "environment",
    "grade": "grader",
    "over": "infrastructure",
}
_WHEN: dict[Phase, str] = {
    "provision": "while its environment was brought up",
    "setup": "while the environment set the task up",
    "agent": "while the agent was playing",
    "tool": "while a tool was running",
    "grade": "while the answer was graded",
    "over": "after it was graded",
}


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
        await _attempt(run, agent, provider, rollout_timeout, last=repeats > retries)
        if "retried_as" not in run.trace.extra:
            break
        await asyncio.sleep(RETRY_PAUSES.seconds(repeats))
        run = run.successor()
    return run


async def _attempt(
    run: Run, agent: Agent, provider: Provider, rollout_timeout: float | None, *, last: bool
) -> None:
    run.live.agent, run.model = agent, agent.model_name
    run.recorder.run_started(run)
    set_deadline(run, rollout_timeout)
    limit = asyncio.timeout_at(run.live.deadline)
    repeatable = not last
    try:
        try:
            async with limit:
                with exits_contained():
                    await bring_up(run, provider)
                    with instrumented(run.record):
                        await agent(run)
                        await run.evaluate()
        except BaseException as error:
            settle(run, error, timed_out=limit.expired())
            repeatable = repeatable and not isinstance(error, RefusedError)
        run.trace.extra.pop("retried_as", None)  # The only record of the repetition.
        if run.failure_kind == "infrastructure" and repeatable:
            # The broken attempt stays on record, unmeasured, and names its successor.
            run.trace.extra["retried_as"] = new_id()
    finally:
        await take_down(run)


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


def set_deadline(run: Run, seconds: float | None) -> None:
    """Set the run's deadline, counted from now."""
    seconds = ROLLOUT_SECONDS if seconds is None else seconds
    seconds = min(seconds, run_seconds_of(run.task.runtime_config))
    run.live.limit_seconds = seconds
    run.live.deadline = None if math.isinf(seconds) else asyncio.get_running_loop().time() + seconds


async def bring_up(run: Run, provider: Provider) -> None:
    """Bring an environment up for the run, and start its task there."""
    run.live.phase = "provision"
    run.live.provider = provider
    process_mark()
    world = provider(run.task)
    run.live.connection = await world.__aenter__()
    run.live.world = world
    run.runtime = getattr(run.live.connection, "address", None) or "local"
    run.live.phase = "setup"
    await run.start()


async def play(run: Run, agent: Agent | None) -> None:
    """Have `agent` play a run that is up, and the environment grade it, within the run's deadline.

    None: the caller's code has played it.
    """
    if agent is not None:
        run.live.agent, run.model = agent, agent.model_name
    limit = asyncio.timeout_at(run.live.deadline)
    try:
        async with limit:
            with exits_contained(), instrumented(run.record):
                if agent is not None:
                    await agent(run)
                await run.evaluate()
    except BaseException as error:
        settle(run, error, timed_out=limit.expired())


async def take_down(run: Run) -> None:
    """Take the run's environment down, and report the run's end."""
    world, run.live.world = run.live.world, None
    try:
        if world is not None:
            async with asyncio.timeout(CLOSE_SECONDS):
                await run.disconnect()
                await world.__aexit__(None, None, None)
    except BaseException as error:
        if not _is_failure_of(run, error):
            raise
        # The grade is valid: it was measured before. The failure is recorded in addition.
        if isinstance(error, TimeoutError) and not str(error):
            error = TimeoutError(f"not down after {CLOSE_SECONDS:g} s")
        problem = f"The environment could not be taken down: {describe(error)}"
        run.trace.extra["close_error"] = problem
        run.record(Step(source="system", error=problem))
    finally:
        run.live.connection = None
        run.ended_at = now()
        run.report()
        run.recorder.run_ended(run)


def settle(run: Run, error: BaseException, *, timed_out: bool = False) -> None:
    """Make the failure that `error` was the outcome of `run`; raises what is not the run's to keep."""
    if not _is_failure_of(run, error):
        run.trace.status = "cancelled"
        run.error = f"Cancelled {_WHEN[run.live.phase]}."
        run.grade = Grade.ungraded()
        raise error
    if isinstance(error, StoreError):
        # Not by `fail`, which records a step: that is what cannot be done.
        run.trace.status, run.failure_kind = "error", "infrastructure"
        run.error, run.grade = str(error), Grade.ungraded()
        raise error
    kind = error.kind if isinstance(error, RolloutError | RefusedError) else _BLAME[run.live.phase]
    unusable = run.live.phase == "provision" and isinstance(error, UsageError)
    if isinstance(error, RefusedError):
        unusable = error.everywhere
    problem = describe(error)
    if timed_out and isinstance(error, TimeoutError):
        if run.live.phase == "tool":
            kind = "agent"  # Its own call was running: as much its time as that between calls.
        problem = (
            f"The rollout passed its limit of {run.live.limit_seconds:g} s {_WHEN[run.live.phase]}."
        )
        run.trace.stop_reason = "timeout"
    run.fail(kind, problem)
    if unusable:
        # The runtime itself is wrong (no such file, no such environment), or the model's server knows no such
        # key or model: so it is for every other run.
        raise error


def _is_failure_of(run: Run, error: BaseException) -> bool:
    """Return True for a failure of foreign code, a cancellation of the run's asyncio task by that code included."""
    cancels = run.live.cancels
    if isinstance(error, asyncio.CancelledError) and cancels is not None and not cancels():
        withdraw_cancellation()
    return is_failure(error)


def describe(error: BaseException) -> str:
    """Return one line that says what broke; where, too, if it was not one of our own sentences."""
    if isinstance(error, RolloutError | UsageError):
        return str(error)
    return located(error)
