"""One agent of Claude's or Gemini's plays many runs together, and goes on in another event loop."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.agents.rooms import tool_steps
from tests.agents.servers import anthropic, gemini

from hud.agents import ClaudeAgent, GeminiAgent
from hud.eval.rollouts import rollout
from hud.trace.recording.recorder import NullRecorder

pytestmark = pytest.mark.usefixtures("waits")
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
TURNS = 3


class Claude(anthropic.AnthropicMessages):
    """Says what comes next by how far the conversation is, whoever asks."""

    agent, key = ClaudeAgent, anthropic.KEY

    async def answer(self, request, body, turn):
        said = len(body["messages"])
        made = [
            anthropic.call("look", f"t{said}", where=f"{said}"),
            anthropic.call("look", f"u{said}"),
        ]
        turn = made if said < 2 * TURNS else [anthropic.say("door")]
        return await super().answer(request, body, turn)


class Gemini(gemini.GeminiContent):
    """The same in Gemini's words."""

    agent, key = GeminiAgent, gemini.KEY

    async def answer(self, request, body, turn):
        said = len(body["contents"])
        made = [
            gemini.call("look", f"t{said}", "AAAA", where=f"{said}"),
            gemini.call("look", f"u{said}"),
        ]
        turn = made if said < 2 * TURNS else [gemini.say("door")]
        return await super().answer(request, body, turn)


async def play(task, agent, runs):
    async def one():
        return await rollout(
            task, agent, runtime=lambda task: task.environment.run(), recorder=NullRecorder()
        )

    return await asyncio.gather(*[one() for _ in range(runs)])


@STREAMED
@pytest.mark.parametrize("provider", [Claude, Gemini])
async def test_runs_do_not_hear_of_one_another(task, provider, stream):
    async with provider(*[None] * 200) as server:
        agent = provider.agent(base_url=server.url, api_key=provider.key, stream=stream)
        runs = await play(task, agent, 10)
        await agent.aclose()
    assert server.refused == []
    assert [run.error for run in runs] == [None] * 10
    for run in runs:
        told = [step.result.text for step in tool_steps(run)]
        assert sorted(told) == sorted(
            [f"{said}: a door" for said in (1, 3, 5)] + ["around: a door"] * 3
        )


@pytest.mark.parametrize("provider", [Claude, Gemini])
def test_an_agent_goes_on_in_another_event_loop(task, provider):
    agents = []

    async def once():
        async with provider(*[None] * 20) as server:
            if not agents:
                agents.append(provider.agent(base_url=server.url, api_key=provider.key))
            model = agents[0].model
            model.endpoint = replace(model.endpoint, url=server.url)  # Another server each time.
            (run,) = await play(task, agents[0], 1)
            return run.reward

    assert asyncio.run(once()) == 1.0
    assert asyncio.run(once()) == 1.0
