"""Playing runs with providers' agents that have tools of the providers' own kinds."""

from __future__ import annotations

import asyncio

import pytest
from tests.agents.servers.loopback import PNG, closing_agent

from hud.agents import Agent
from hud.eval.rollouts import rollout
from hud.trace import ImageContent, TextContent, ToolResult, ToolSpec, ToolStep
from hud.trace.recording.recorder import NullRecorder

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
PICTURE = ImageContent(data=PNG, mime_type="image/png")


class Equipped(Agent):
    """An agent that has tools of its own beside the environment's."""

    def __init__(self, agent, *tools):
        self.agent, self.tools = agent, tools

    async def __call__(self, run):
        for tool in self.tools:
            tool.run = run
            run.attach(tool)
        await self.agent(run)


class Native:
    """A tool of a provider's own kind, which remembers what it was told."""

    def __init__(self, kind, broken=(), **options):
        self.spec = ToolSpec(name=kind, native=kind, description="Ours.", options=options)
        self.broken = broken
        self.called = 0
        self.did = []

    async def call(self, arguments, timeout=None):
        # The first take the longest: together, they would overtake one another.
        self.called += 1
        await asyncio.sleep(max(0.0, 0.02 - 0.001 * self.called))
        self.did.append(arguments)
        if arguments.get("action") in self.broken:
            return ToolResult.of_text("there is no such place", is_error=True)
        if self.spec.native == "computer":
            return ToolResult(content=[TextContent(text="At http://shop/lamp now."), PICTURE])
        return ToolResult.of_text("done")


def computer(environment="linux", broken=(), size=(1024, 768)):
    return Native("computer", broken, width=size[0], height=size[1], environment=environment)


async def played(task, agent, *tools):
    """Play a task with an agent that is closed afterwards."""
    async with closing_agent(agent):
        return await rollout(
            task,
            Equipped(agent, *tools),
            runtime=lambda task: task.environment.run(),
            recorder=NullRecorder(),
        )


def agent_steps(run):
    return [step for step in run.trace.steps if step.source == "agent"]


def tool_steps(run):
    return [step for step in run.trace.steps if isinstance(step, ToolStep)]
