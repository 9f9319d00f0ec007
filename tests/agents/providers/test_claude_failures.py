"""Claude's agent where the provider is busy, broken or full: what is asked again, and what ends."""

from __future__ import annotations

import pytest
from tests.agents.rooms import STREAMED, Native, agent_steps, computer, played, tool_steps
from tests.agents.servers.anthropic import BINDING, KEY, AnthropicMessages, act, call, say, think
from tests.agents.servers.loopback import BreakOff, Hang, HangUp, Raw, Status, StreamError

from hud.agents import ClaudeAgent
from hud.errors import RefusedError
from hud.trace import ToolResult, ToolSpec

pytestmark = pytest.mark.usefixtures("waits")


async def play(task, server, *tools, **config):
    config = {"model": "claude-sonnet-4-6", "base_url": server.url, "api_key": KEY, **config}
    return await played(task, ClaudeAgent(**config), *tools)


class Growing:
    """A tool whose call brings another."""

    spec = ToolSpec(name="grow")

    async def call(self, arguments, timeout=None):
        self.run.attach(Native("bash"))
        return ToolResult.of_text("grown")


@STREAMED
async def test_busy_and_broken_servers_are_asked_again(task, stream, waits):
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    server = AnthropicMessages(
        Status(429, {"error": {"type": "rate_limit_error"}}, {"retry-after": "7"}),
        Status(529, overloaded),
        HangUp(),
        Raw(b"<html>bad gateway</html>", "text/html"),
        [say("door")],
    )
    async with server:
        run = await play(task, server, stream=stream)
    assert (run.reward, len(server.requests), waits[0]) == (1.0, 5, 7.0)
    assert len(agent_steps(run)) == 1


async def test_streams_that_break_off_are_asked_again(task):
    server = AnthropicMessages(
        BreakOff([think("hm", "s1"), say("wall")], 6),
        BreakOff([think("hm", "s2"), say("wall")], 7, torn=True),
        StreamError([say("wall")], 4, {"type": "overloaded_error", "message": "Overloaded"}),
        BreakOff([say("wall")], 7),
        [say("door")],
    )
    async with server:
        run = await play(task, server, stream=True)
    assert (run.reward, len(server.requests)) == (1.0, 5)


@STREAMED
async def test_silence_is_asked_again_after_its_time(task, stream):
    async with AnthropicMessages(Hang(), [say("door")]) as server:
        run = await play(task, server, stream=stream, request_timeout_seconds=0.2)
    assert (run.reward, len(server.requests)) == (1.0, 2)


async def test_a_server_that_stays_overloaded_leaves_the_run_unmeasured(task):
    async with AnthropicMessages(*[Status(529)] * 15) as server:
        run = await play(task, server)
    assert (run.reward, run.failure_kind) == (None, "infrastructure")
    assert "529" in run.error
    assert len(server.requests) == 15  # Five attempts, in each of three rollouts.


async def test_a_wrong_key_ends_the_job(task):
    async with AnthropicMessages() as server:
        with pytest.raises(RefusedError) as refused:
            wrong = {"error": {"type": "authentication_error", "message": "invalid x-api-key"}}
            server.script = [Status(401, wrong)]
            await play(task, server)
    assert refused.value.everywhere


def screens(body):
    """Return for each result of a computer whether it still is a picture."""
    return [
        block["content"][-1]["type"] == "image"
        for turn in body["messages"]
        for block in turn["content"]
        if block["type"] == "tool_result"
    ]


TOO_LONG = {
    "type": "error",
    "error": {
        "type": "invalid_request_error",
        "message": "prompt is too long: 9 tokens > 8 maximum",
    },
}


@pytest.mark.parametrize("model", ["claude-sonnet-4-6", "claude-opus-5-5"])
async def test_a_conversation_that_outgrows_the_window_loses_its_oldest_pictures(task, model):
    newest = model == "claude-opus-5-5"
    looks = [
        [
            think("hm", f"s{number}"),
            act("screenshot", f"t{number}")
            if newest
            else call("computer", f"t{number}", action="screenshot"),
        ]
        for number in range(5)
    ]
    server = AnthropicMessages(*looks, Status(400, TOO_LONG), Status(400, TOO_LONG), [say("door")])
    async with server:
        run = await play(task, server, computer(), context_policy="drop_images", model=model)
    assert (run.reward, run.error, server.refused) == (1.0, None, [])
    assert [screens(body) for body in server.requests[5:]] == [
        [True] * 5,
        [False] * 2 + [True] * 3,
        [False] * 3 + [True] * 2,
    ]
    assert run.trace.extra["dropped_images"] == 3
    bound = [BINDING in head.get("anthropic-beta", "") for head in server.headers]
    assert bound == [newest] * 8


async def test_or_ends_there_and_is_graded(task):
    server = AnthropicMessages([say("door"), call("picture", "t1")], Status(400, TOO_LONG))
    async with server:
        run = await play(task, server)
    assert (run.reward, run.trace.stop_reason) == (1.0, "length")
    assert "too long" in run.trace.extra["context_overflow"]


@STREAMED
async def test_a_window_that_is_full_in_the_middle_of_a_turn(task, stream):
    full = {"content": [say("do")], "stop_reason": "model_context_window_exceeded"}
    async with AnthropicMessages(full) as server:
        run = await play(task, server, stream=stream, stop_on=[])
    assert (run.trace.stop_reason, run.trace.content) == ("length", "do")
    turns = [[call("picture", "t1"), call("picture", "t2")], full, [say("door")]]
    async with AnthropicMessages(*turns) as server:
        run = await play(task, server, stream=stream, context_policy="drop_images")
    assert (run.reward, server.refused, run.trace.extra["dropped_images"]) == (1.0, [], 1)


async def test_tools_that_come_in_mid_run_do_not_cost_the_thoughts(task):
    server = AnthropicMessages(
        [think("hm", "s1"), call("grow", "t1")],
        [think("ha", "s2"), call("bash", "t2")],
        [say("door")],
    )
    async with server:
        run = await play(task, server, Growing(), model="claude-sonnet-5-5")
    assert (run.reward, server.refused) == (1.0, [])
    assert tool_steps(run)[1].result.text == "done"
