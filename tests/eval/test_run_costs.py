"""What a run cost: its own model calls and its subagents'."""

from __future__ import annotations

from pathlib import Path

import pytest

from hud.agents import ScriptedAgent
from hud.environment import load_environment
from hud.eval import LocalRuntime, job_statistics
from hud.eval.rollouts import rollout
from hud.trace import AgentStep, ToolCall, Usage
from hud.trace.recording.recorder import NullRecorder

world = load_environment(f"{Path(__file__).with_name('subagent_world.py')}:library")


async def played(own, nested):
    """Play a run whose agent calls a subagent twice; each turn costs what is given."""

    async def reads(run):
        run.record(AgentStep(content="words", usage=Usage(prompt_tokens=5, cost_usd=nested)))
        return "words"

    async def asks(run):
        for number in range(2):
            title = run.prompt_text.split()[3]
            call = ToolCall(id=f"c{number}", name="ask_reader", arguments={"title": title})
            run.record(AgentStep(tool_calls=[call], usage=Usage(prompt_tokens=7, cost_usd=own)))
            await run.call_tool(call)

    agent = ScriptedAgent(asks)
    agent.subagents = {"ask_reader": ScriptedAgent(reads)}
    task = world.templates["enquire"]()
    return await rollout(task, agent, runtime=LocalRuntime(world), recorder=NullRecorder())


@pytest.mark.parametrize(
    ("own", "nested", "whole"),
    [(0.5, 0.25, 1.5), (None, 0.25, 0.5), (0.5, None, 1.0), (None, None, None)],
)
async def test_subagents_cost_their_caller(own, nested, whole):
    run = await played(own, nested)
    assert run.error is None
    assert run.cost_usd == whole
    assert run.summary().cost_usd == whole
    assert run.summary().prompt_tokens == 14  # Its own; theirs stand in their own runs.
    assert job_statistics([run.summary()]).cost_usd == whole
