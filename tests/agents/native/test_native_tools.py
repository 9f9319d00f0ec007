"""Tools that agents have because of what their environments offer: they are called, recorded, and told apart."""

from __future__ import annotations

import pytest
from tests.agents.servers.anthropic import KEY, AnthropicMessages, call, say
from tests.agents.servers.loopback import closing_agent
from tests.environment.mcp.servers.serving import listening

from hud.agents import ClaudeAgent, ScriptedAgent
from hud.capabilities import Capability
from hud.environment import Environment
from hud.eval.rollouts import rollout
from hud.trace import Completion, ToolCall, ToolStep
from hud.trace.recording.recorder import NullRecorder


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))


def world():
    env = Environment("market")

    @env.tool
    async def total() -> str:
        """Say the environment's own total."""
        return "ours"

    @env.template()
    async def shopping():
        """Buy tea."""
        answer = yield "Buy tea."
        yield float(answer == "tea")

    return env, shopping()


async def play(task, agent):
    return await rollout(
        task, agent, runtime=lambda task: task.environment.run(), recorder=NullRecorder()
    )


def calling(*calls, **config):
    """Return an agent that makes these calls together, then answers `tea`; and what tools it was offered."""
    offered = []

    def policy(messages, tools, trace):
        offered.append([tool.name for tool in tools])
        if calls and messages[-1]["role"] == "user":
            made = [ToolCall(id=f"c{n}", name=name, arguments=given) for n, (name, given) in calls]
            return Completion(tool_calls=made)
        return "tea"

    calls = list(enumerate(calls))
    return ScriptedAgent(policy, **config), offered


def answers(run):
    steps = [step for step in run.trace.steps if isinstance(step, ToolStep)]
    return {step.call.name: step.result for step in steps}


@pytest.mark.slow
async def test_the_tools_of_servers_are_the_agents_and_the_environments_own_stay():
    env, task = world()
    async with listening() as first, listening(key="secret") as second:
        env.add_capability(Capability.mcp("shop", url=first.url, transport="streamable-http"))
        env.add_capability(
            Capability.mcp(
                "store", url=second.url, transport="streamable-http", auth_token="secret"
            )
        )
        agent, offered = calling(
            ("add", {"item": "tea"}), ("store_add", {"item": "milk"}), ("total", {}), ("refuse", {})
        )
        run = await play(task, agent)
    assert (run.reward, run.error) == (1.0, None)
    assert {"add", "store_add", "total", "refuse"} <= set(offered[0])
    assert "store_total" not in offered[0]
    told = answers(run)
    assert (told["add"].text, told["store_add"].text, told["total"].text) == ("tea", "milk", "ours")
    assert told["refuse"].is_error


@pytest.mark.slow
async def test_a_server_that_is_not_there_leaves_the_run_unmeasured():
    env, task = world()
    env.add_capability(Capability.mcp("shop", url="http://127.0.0.1:9/mcp"))
    agent, offered = calling()
    run = await play(task, agent)
    assert (run.failure_kind, run.reward, offered) == ("infrastructure", None, [])
    assert "shop" in run.error


async def test_an_agent_may_do_without():
    env, task = world()
    env.add_capability(Capability.mcp("shop", url="http://127.0.0.1:9/mcp"))
    agent, offered = calling(native_tools=["bash"])
    run = await play(task, agent)
    assert (run.reward, offered[0]) == (1.0, ["total"])


async def test_a_workspace_is_a_shell_and_an_editor(tmp_path):
    env, task = world()
    env.workspace()
    server = AnthropicMessages(
        [
            call("bash", "t1", command="cd /tmp && echo tea > list"),
            call("str_replace_based_edit_tool", "t2", command="create", path="note", file_text="a"),
        ],
        [call("bash", "t3", command="pwd; cat list"), call("bash", "t4", command="(exit 3)")],
        [say("tea")],
    )
    async with server, closing_agent(ClaudeAgent(base_url=server.url, api_key=KEY)) as agent:
        run = await play(task, agent)
    assert (run.reward, run.error, server.refused) == (1.0, None, [])
    results = [step.result.text for step in run.trace.steps if isinstance(step, ToolStep)]
    assert "/tmp\ntea" in results
    assert "[exit status 3]" in results[-1]
    kinds = {tool.get("type") for tool in server.requests[0]["tools"]}
    assert {"bash_20250124", "text_editor_20250728"} <= kinds
