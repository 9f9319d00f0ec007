"""Subagents: tool calls that are runs with their own model, environment and reward.

The environment defines the delegated task; it is played in the caller's process, in a run of the subagent's environment
nested in the caller's. The caller's trace contains the nested trace; the store also has it as a separate run, on which the
subagent's model is trained. See docs/decisions/0006-subagents-play-beside-their-caller.md.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hud.agents.agent_forms import as_agent
from hud.environment import Task
from hud.environment.templates.task import Player, Provider
from hud.environment.tools.results import tool_result
from hud.errors import (
    EnvironmentFault,
    HudError,
    InfrastructureFault,
    RolloutError,
    StoreError,
    UsageError,
)
from hud.eval.job import Job, default_recorder
from hud.eval.rollouts import carry_out, prepare
from hud.eval.run import DEEPEST, Run
from hud.trace import SubagentStep, ToolCall, ToolResult, ToolStep, Trace, derived_id, new_id, now
from hud.trace.recording.recorder import Recorder

if TYPE_CHECKING:
    from hud.agents.agent import Agent
    from hud.environment import Delegation, EnvironmentRun
    from hud.environment.connection import Connection

_made: WeakKeyDictionary[Any, dict[str, Agent]] = WeakKeyDictionary()
"""Agents created for models of subagent tools, by the calling agent."""
_announced: WeakKeyDictionary[Recorder, set[str]] = WeakKeyDictionary()


async def call_subagent(run: Run, call: ToolCall) -> ToolResult:
    """Play the subagent of `call`, nested in `run`; record its run, the call and its result.

    A subagent's own failure is an error result. Raises `EnvironmentFault` or `InfrastructureFault` for failures of its
    environment or the infrastructure, which are not the caller's.
    """
    started = now()
    result = await _called(run, call.name, call.arguments)
    run.record(ToolStep(call=call, result=result, started_at=started))
    return result


async def play_here(
    world: EnvironmentRun, name: str, arguments: dict[str, Any] | str, timeout: float | None
) -> ToolResult:
    """Play a subagent for an external caller; its run is recorded without a caller."""
    if len(world.nesting) > DEEPEST:
        return _refused(f"{name}: subagents may call one another {DEEPEST} deep, no deeper.")
    recorder = default_recorder()
    caller = Run(Task(env=world.name, id=name), Trace(), recorder=recorder)
    caller.live.connection = world
    if timeout is not None:
        caller.live.deadline = asyncio.get_running_loop().time() + timeout
    result = await _called(caller, name, arguments)
    await recorder.flush()
    return result


async def _called(run: Run, name: str, arguments: dict[str, Any] | str) -> ToolResult:
    connection = run.live.connection
    assert connection is not None
    if (spent := run.budget.spent) is not None:
        return _refused(f"{name} was not called: the budget is spent ({spent}).")
    delegation = await connection.delegate(name, arguments)
    if isinstance(delegation, ToolResult):
        return delegation
    child = _child_of(run, name, delegation)
    run.children.append(child)
    try:
        agent = await _player(run, name, delegation)
        await carry_out(child, agent, _nested(connection, name), _seconds_left(run, delegation))
    except (RolloutError, StoreError):
        raise
    except UsageError as error:
        raise EnvironmentFault(f"Subagent {name!r} of {run.task.env!r}: {error}") from error
    except HudError as error:
        raise InfrastructureFault(f"Subagent {name!r} of {run.task.env!r}: {error}") from error
    finally:
        child = next(
            sibling for sibling in reversed(run.children) if sibling.called_as == child.called_as
        )
        if child.trace.steps or child.error:
            run.record(_nested_step(child, name))
    return _told(child, name)


def _child_of(run: Run, name: str, delegation: Delegation) -> Run:
    """Return the run for a call.

    The n-th calls of a tool, one from each run of a group, form a group: they are independent, so their mean is a valid
    baseline.
    """
    number = len(
        {
            sibling.called_as
            for sibling in run.children
            if sibling.called_as and sibling.called_as[0] == name
        }
    )
    child = Run(
        task=delegation.task,
        trace=Trace(trace_id=new_id()),
        job_id=_job_of(run, name),
        group_id=None if run.group_id is None else derived_id(run.group_id, name, number),
        attempt=run.attempt,
        recorder=run.recorder,
        caller=run,
        called_as=(name, number),
    )
    child.budget.within = run.budget
    child.live.tool_timeout = run.live.tool_timeout
    if run.trace.trace_id is not None:
        child.trace.extra |= {"parent_trace_id": run.trace_id, "subagent": name}
    return child


def _job_of(run: Run, name: str) -> str | None:
    """Return the job of a tool's runs, separate from the caller's job and its statistics."""
    if run.job_id is None:
        return None
    job = Job(
        id=derived_id(run.job_id, name),
        name=f"{name}, called in job {run.job_id[:12]}",
        purpose="subagent",
        called_by=run.job_id,
        called_as=name,
    )
    announced = _announced.setdefault(run.recorder, set())
    if job.id not in announced:
        announced.add(job.id)
        run.recorder.job_started(job)
    return job.id


async def _player(run: Run, name: str, delegation: Delegation) -> Agent:
    """Return the player: the one named by a calling agent, else the environment's model."""
    above: Run | None = run
    while above is not None:
        named = above.live.agent.subagents if above.live.agent is not None else {}
        player = named.get(name)
        if player is None and delegation.model is not None:
            player = named.get(delegation.model)
        if player is not None:
            return await _ready(player, run)
        above = above.caller
    if delegation.model is not None:
        return await _ready(delegation.model, run)
    if run.live.agent is None:
        raise UsageError("it has no model, and its caller has no agent; give it a model.")
    return run.live.agent


async def _ready(player: Player, run: Run) -> Agent:
    """Return a prepared agent; for a model's slug it is created once for each top-level agent."""
    if not isinstance(player, str):
        return await prepare(player)
    top = run
    while top.caller is not None:
        top = top.caller
    made = _made.setdefault(top.live.agent, {}) if top.live.agent is not None else {}
    if player not in made:
        caller = top.live.agent
        make = as_agent if caller is None or caller.make_subagent is None else caller.make_subagent
        made[player] = make(player)
    await prepare(made[player])
    return made[player]


async def close_made(agent: Agent) -> None:
    """Close the connections of the agents created for the subagents of `agent`."""
    for made in _made.pop(agent, {}).values():
        await made.aclose()


def _nested(connection: Connection, name: str) -> Provider:
    """Return the runtime of a subagent: a run of its environment, nested in its caller's."""

    @asynccontextmanager
    async def bring_up(task: Task) -> AsyncIterator[Connection]:
        del task
        nested = await connection.nested(name)
        try:
            yield nested
        finally:
            await nested.close()

    return bring_up


def _seconds_left(run: Run, delegation: Delegation) -> float:
    own = math.inf if delegation.seconds is None else delegation.seconds
    if run.live.deadline is None:
        return own
    return max(1e-3, min(own, run.live.deadline - asyncio.get_running_loop().time()))


def _nested_step(child: Run, name: str) -> SubagentStep:
    return SubagentStep(
        subagent=child.trace,
        error=child.error,
        started_at=child.started_at,
        extra={
            "tool": name,
            "model": child.model,
            "slug": child.slug,
            "reward": child.reward,
            "failure_kind": child.failure_kind,
        },
    )


def _told(child: Run, name: str) -> ToolResult:
    """Return the call's result; raises for failures that are neither the subagent's nor its grader's."""
    if child.trace.stop_reason == "timeout":
        return _refused(f"{name}: {child.error or 'it ran out of time.'}")
    if child.failure_kind in ("environment", "infrastructure"):
        fault = EnvironmentFault if child.failure_kind == "environment" else InfrastructureFault
        raise fault(f"Subagent {name!r} (trace {child.trace_id}) failed: {child.error}")
    if child.failure_kind == "agent":
        return _refused(f"{name} failed: {child.error}")
    if not child.trace.content:
        return _refused(f"{name} gave no answer; it stopped: {child.trace.stop_reason}.")
    return tool_result(child.trace.content)


def _refused(text: str) -> ToolResult:
    return ToolResult.of_text(text, is_error=True)
