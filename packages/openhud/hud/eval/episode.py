"""Order of one attempt: its environment is brought up, its task started, played and graded, and the environment taken down.

    provision ─► task (setup) ─► user ─► agent and tool steps ─► task (evaluate) ─► close

Every wait has a time-out. Only cancellation, a store that cannot be written and an unusable runtime are raised; any other
failure is the run's, with the part that failed.
"""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hud.environment.templates.runtime_config import run_seconds_of
from hud.errors import GraderFault, RefusedError
from hud.eval.grade import Grade
from hud.eval.results.turn_rewards import with_turn_rewards
from hud.eval.rollout_failure import describe, is_failure_of, record_failure
from hud.eval.run import DEEPEST, Run
from hud.foreign_tasks import exits_contained
from hud.processes.process_mark import process_mark
from hud.trace import Step, TaskCall, new_id, now
from hud.trace.limits import check_answer
from hud.trace.recording.instrument import instrumented

if TYPE_CHECKING:
    from hud.agents.agent import Agent
    from hud.environment import Task
    from hud.environment.connection import Connection
    from hud.environment.templates.task import Provider

ROLLOUT_SECONDS = 3600.0
"""Default time limit of a rollout, in seconds: a hung episode must not block a job."""
CLOSE_SECONDS = 30.0
"""Limit for taking an environment down."""
LEAVE_SECONDS = 10.0
"""Time-out for closing an agent's connections, in seconds."""


async def attempt(
    run: Run, agent: Agent, provider: Provider, rollout_timeout: float | None, *, last: bool
) -> None:
    """Play `run` once. A failure of infrastructure names the successor of `run`, unless it is the `last` attempt."""
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
                        await _evaluate(run)
        except BaseException as error:
            record_failure(run, error, timed_out=limit.expired())
            repeatable = repeatable and not isinstance(error, RefusedError)
        run.trace.extra.pop("retried_as", None)  # The only record of the repetition.
        if run.failure_kind == "infrastructure" and repeatable:
            # The broken attempt stays on record, unmeasured, and names its successor.
            run.trace.extra["retried_as"] = new_id()
    finally:
        await take_down(run)


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
                await _evaluate(run)
    except BaseException as error:
        record_failure(run, error, timed_out=limit.expired())


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
    await _start(run)


async def _start(run: Run) -> None:
    """Start the task: set the prompt, and record the setup and user steps."""
    assert run.live.connection is not None
    started = now()
    frame = await run.live.connection.start(
        run.task.id, run.task.args, training_progress=run.training_progress
    )
    # After the setup half, which may add tools.
    run.tools = list(await run.live.connection.list_tools())
    if run.depth >= DEEPEST:
        run.tools = [tool for tool in run.tools if not tool.delegated]
    run.prompt, run.live.bindings = frame.prompt, frame.bindings
    run.live.phase = "agent"
    run.live.agent_began = asyncio.get_running_loop().time()
    if run.live.snapshots is not None and await run.live.snapshots.resume(run):
        return
    setup = TaskCall(phase="setup", name=run.task.id, arguments=run.task.args)
    shown = {} if frame.state is None else {"state": frame.state}
    run.record(Step(source="task", task_call=setup, started_at=started, extra=shown))
    run.record(Step(source="user", messages=run.prompt_messages))


async def _evaluate(run: Run) -> None:
    """Let the environment grade the answer, and record the evaluate step."""
    assert run.live.connection is not None
    run.report()
    answer = check_answer(run.trace.content) or ""
    run.live.phase = "grade"
    run.live.grading_began = asyncio.get_running_loop().time()
    await _leave(run)
    frame = await _graded(run, run.live.connection, run.task, answer, now())
    if run.task.verifier is not None:
        await _verify(run, run.task.verifier, frame)
    run.live.phase = "over"


async def _verify(run: Run, verifier: Task, frame: dict[str, Any]) -> None:
    """Let the verifier grade the run, in this environment or in its own."""
    if verifier.env == run.task.env:
        assert run.live.connection is not None
        await _verify_in(run, run.live.connection, verifier, frame)
        return
    if verifier.environment is not None:
        world: AbstractAsyncContextManager[Connection] = verifier.environment.run()
    elif run.live.provider is not None:
        world = run.live.provider(verifier)
    else:
        raise GraderFault(f"The verifier {verifier.slug!r} has no environment to run in.")
    async with world as connection:
        await _verify_in(run, connection, verifier, frame)


async def _verify_in(
    run: Run, connection: Connection, verifier: Task, frame: dict[str, Any]
) -> None:
    started = now()
    await connection.start(verifier.id, verifier.args)
    await _graded(run, connection, verifier, json.dumps(frame), started)


async def _graded(
    run: Run, connection: Connection, task: Task, answer: str, started: datetime
) -> dict[str, Any]:
    """Let `task`, started over `connection`, grade `answer`; its grade is the run's."""
    frame = await connection.grade(answer, run.trace)
    grade = Grade.from_dict(frame)
    if grade.is_error:
        raise GraderFault(grade.content or f"The grader of {task.slug!r} says that it failed.")
    frame = with_turn_rewards(frame, run.trace, task.id)
    run.grade = Grade.from_dict(frame)
    call = TaskCall(phase="evaluate", name=task.id, arguments={"answer": answer}, result=frame)
    run.record(Step(source="task", task_call=call, started_at=started))
    return frame


async def _leave(run: Run) -> None:
    """Close the agent's connections before grading, with a time-out."""
    if run.live.clients is None:
        run.live.attached.clear()
        return
    try:
        async with asyncio.timeout(LEAVE_SECONDS):
            await run.disconnect()
    except Exception as error:
        run.trace.extra["close_error"] = (
            f"A connection of the agent could not be closed: {type(error).__name__}: {error}"
        )


async def take_down(run: Run) -> None:
    """Take the run's environment down, and report the run's end."""
    world, run.live.world = run.live.world, None
    try:
        if world is not None:
            async with asyncio.timeout(CLOSE_SECONDS):
                await run.disconnect()
                await world.__aexit__(None, None, None)
    except BaseException as error:
        if not is_failure_of(run, error):
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
        if not (run.live.judged and run.measured):
            run.recorder.run_ended(run)
