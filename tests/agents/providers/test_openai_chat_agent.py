"""The agent over chat completions, against a server that refuses what the documented wire forbids."""

from __future__ import annotations

import json

import pytest
from tests.agents.rooms import STREAMED, agent_steps, played
from tests.agents.servers.loopback import (
    BreakOff,
    Hang,
    HangUp,
    Raw,
    Status,
    StreamError,
)
from tests.agents.servers.openai_chat import KEY, OpenAIChat, call, say

from hud.agents import OpenAIChatAgent
from hud.errors import RefusedError, UsageError
from hud.trace import ToolStep

pytestmark = pytest.mark.usefixtures("waits")


async def play(task, server, **config):
    config = {"model": "m", "base_url": f"{server.url}/v1", "api_key": KEY, **config}
    return await played(task, OpenAIChatAgent(**config))


@STREAMED
async def test_parallel_calls_names_and_reasoning_cross_the_wire_and_come_back(task, stream):
    server = OpenAIChat(
        call(
            ("look", "c1", {"where": "up"}),
            ("doors_open_wide", "c2", {}),
            reasoning_content="hm, doors",
        ),
        say("door"),
    )
    async with server:
        run = await play(task, server, stream=stream, system_prompt="Be brief.")
    assert (run.reward, run.error, server.refused) == (1.0, None, [])
    first, last = agent_steps(run)
    assert (first.reasoning, first.finish_reason) == ("hm, doors", "tool_calls")
    assert [one.name for one in first.tool_calls] == ["look", "doors.open wide"]
    assert first.tool_calls[0].arguments == {"where": "up"}
    assert (last.content, last.model) == ("door", "m-2026-07-01")
    roles = [message["role"] for message in server.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool"]
    assert run.trace.usage.prompt_tokens == 200
    assert run.trace.usage.cached_tokens == 80


@STREAMED
async def test_a_known_models_cost_is_in_the_trace(task, stream):
    async with OpenAIChat(say("door")) as server:
        run = await play(task, server, stream=stream, model="gpt-5")
    assert run.trace.usage.cost_usd == pytest.approx((60 * 1.25 + 40 * 0.125 + 20 * 10) / 1e6)


async def test_pictures_of_tools_follow_all_answers_in_a_message_of_the_users(task):
    server = OpenAIChat(
        call(("picture", "c1", {}), ("look", "c2", {}), ("picture", "c3", {})),
        call(("picture", "c4", {})),
        say("door"),
    )
    async with server:
        run = await play(task, server)
    assert (run.reward, server.refused) == (1.0, [])
    messages = server.requests[2]["messages"]
    roles = [message["role"] for message in messages]
    assert roles == [
        "user",
        "assistant",
        "tool",
        "tool",
        "tool",
        "user",
        "assistant",
        "tool",
        "user",
    ]
    kinds = [part["type"] for part in messages[5]["content"]]
    assert kinds == ["text", "image_url", "text", "image_url"]
    assert [message["content"] for message in messages[2:5]] == ["here:", "around: a door", "here:"]
    # The trace has them where they belong: with their tools.
    pictured = [
        s for s in run.trace.steps if isinstance(s, ToolStep) and len(s.result.content) == 2
    ]
    assert len(pictured) == 3


@STREAMED
async def test_refusals_and_filtered_turns_are_recorded_as_refusals(task, stream):
    turns = say(None, refusal="I will not."), say("do", finish_reason="content_filter")
    async with OpenAIChat(*turns) as server:
        refused = await play(task, server, stream=stream, auto_respond=True)
        filtered = await play(task, server, stream=stream)
    assert agent_steps(refused)[0].refusal == "I will not."
    assert agent_steps(filtered)[0].finish_reason == "content_filter"
    assert "filter" in agent_steps(filtered)[0].refusal
    assert [run.trace.stop_reason for run in (refused, filtered)] == ["done", "done"]


@STREAMED
async def test_a_turn_that_was_cut_off_ends_the_run(task, stream):
    async with OpenAIChat(say("do", finish_reason="length")) as server:
        run = await play(task, server, stream=stream, completion_kwargs={"max_tokens": 64})
    assert (run.trace.stop_reason, server.requests[0]["max_tokens"]) == ("length", 64)


async def test_the_budget_of_tokens_bounds_a_turn(task):
    async with OpenAIChat(call(("look", "c1", {})), say("door")) as server:
        await play(task, server, total_tokens=3_000)
    assert [body["max_tokens"] for body in server.requests] == [3_000, 2_980]


async def test_calls_without_ids_and_with_objects_for_arguments_are_understood(task):
    odd = {"content": None, "tool_calls": [{"function": {"name": "look", "arguments": {}}}] * 2}
    async with OpenAIChat(odd, say("door")) as server:
        run = await play(task, server)
    assert (run.reward, server.refused) == (1.0, [])


@STREAMED
async def test_busy_and_broken_servers_are_asked_again(task, stream, waits):
    server = OpenAIChat(
        Status(429, {"error": {"message": "slow"}}, {"retry-after": "7"}),
        Status(529, {}, {"retry-after": "2"}),
        HangUp(),
        Hang(),
        say("door"),
    )
    async with server:
        run = await play(task, server, stream=stream, request_timeout_seconds=0.3)
    assert (run.reward, len(server.requests), len(agent_steps(run))) == (1.0, 5, 1)
    assert waits[:2] == [7.0, 2.0]


async def test_streams_that_break_off_are_asked_again(task):
    calls = call(("look", "c1", {"where": "far and wide"}))
    server = OpenAIChat(
        BreakOff(calls, 3),
        BreakOff(calls, 4, torn=True),
        StreamError(say("wall"), 2, {"message": "Sorry.", "type": "server_error"}),
        Raw(b'data: {"choices": [{"del', "text/event-stream"),
        say("door"),
    )
    async with server:
        run = await play(task, server, stream=True)
    assert (run.reward, len(server.requests)) == (1.0, 5)


async def test_a_wrong_key_ends_the_job_and_is_not_repeated_to_anybody(task):
    body = {"error": {"message": f"Incorrect API key provided: {KEY}-0123456789abcdef."}}
    async with OpenAIChat(Status(401, body)) as server:
        with pytest.raises(RefusedError, match="check HUD_API_KEY") as refused:
            await play(task, server)
    assert "0123456789abcdef" not in str(refused.value)


async def test_a_conversation_that_outgrows_the_window_ends_there_and_is_graded(task):
    message = "This model's maximum context length is 8192 tokens. Please reduce the length."
    body = {"error": {"message": message, "code": "context_length_exceeded"}}
    async with OpenAIChat(
        say("door", **call(("look", "c1", {}))) | {"content": "door"},
        Status(400, body),
        Status(400, body),
    ) as server:
        run = await play(task, server)
    assert (run.reward, run.trace.stop_reason) == (1.0, "length")
    assert [request.get("max_tokens") for request in server.requests] == [16384, 16384, None]


TOO_LARGE = [
    "'max_tokens' is too large: 16384. This model's maximum context length is 4096 tokens and your request has 100 input tokens",
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
]


@pytest.mark.parametrize("message", TOO_LARGE)
async def test_a_server_that_refuses_the_default_bound_of_a_turn_gets_none(task, message):
    refusal = Status(400, {"error": {"message": message}})
    calls = call(("look", "c1", {}))
    async with OpenAIChat(refusal, calls, say("door")) as server:
        run = await play(task, server)
    assert (run.reward, run.trace.stop_reason) == (1.0, "done")
    assert [request.get("max_tokens") for request in server.requests] == [16384, None, None]


@pytest.mark.parametrize(
    ("chosen", "bound"),
    [({}, 16384), ({"max_tokens": 5}, 5), ({"max_completion_tokens": 5}, None)],
)
async def test_a_turn_is_bounded_by_default(task, chosen, bound):
    async with OpenAIChat(say("door")) as server:
        await play(task, server, completion_kwargs=chosen)
    assert server.requests[0].get("max_tokens") == bound


async def test_a_chosen_bound_that_is_refused_is_kept(task):
    refusal = Status(400, {"error": {"message": TOO_LARGE[1]}})
    async with OpenAIChat(refusal) as server:
        run = await play(task, server, completion_kwargs={"max_tokens": 9000})
    assert run.failure_kind == "infrastructure"
    assert len(server.requests) == 1


def test_streams_with_token_ids_are_refused_at_once():
    with pytest.raises(UsageError, match="token ids come with whole answers"):
        OpenAIChatAgent(
            model="m",
            base_url="http://x",
            stream=True,
            completion_kwargs={"return_token_ids": True},
        )


async def test_servers_of_ours_read_conversations_as_they_are_trained_on(task):
    """With token ids, neither names nor pictures are rewritten: later turns continue the exact ids."""
    bodies = []

    class Ours(OpenAIChat):
        def check(self, request, body):
            bodies.append(json.loads(json.dumps(body)))

    async with Ours(
        call(("doors.open wide", "c1", {})), call(("picture", "c2", {})), say("door")
    ) as server:
        run = await play(task, server, completion_kwargs={"return_token_ids": True})
    assert run.reward == 1.0
    assert "doors.open wide" in {tool["function"]["name"] for tool in bodies[0]["tools"]}
    assert bodies[2]["messages"][-1]["content"][1]["type"] == "image_url"
