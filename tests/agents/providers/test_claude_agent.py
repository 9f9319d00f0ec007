"""Claude's agent, against a server that refuses what the documented wire forbids."""

from __future__ import annotations

import pytest
from tests.agents.rooms import STREAMED, agent_steps, played, tool_steps
from tests.agents.servers.anthropic import KEY, AnthropicMessages, call, say, think

from hud.agents import ClaudeAgent

pytestmark = pytest.mark.usefixtures("waits")


async def play(task, server, *tools, **config):
    config = {"model": "claude-sonnet-4-6", "base_url": server.url, "api_key": KEY, **config}
    return await played(task, ClaudeAgent(**config), *tools)


@STREAMED
async def test_thoughts_go_back_as_they_came_and_parallel_calls_are_all_answered(task, stream):
    server = AnthropicMessages(
        [think("first", "s1"), call("look", "t1", where="up"), call("look", "t2")],
        [think("", "s2"), say("I go."), call("picture", "t3"), call("silent", "t4")],
        [say("door")],
    )
    async with server:
        run = await play(
            task,
            server,
            stream=stream,
            system_prompt="Be brief.",
            thinking={"type": "adaptive"},
            effort="low",
        )
    assert (run.reward, run.error, server.refused) == (1.0, None, [])
    first, second, third = server.requests
    assert first["system"][0]["text"] == "Be brief."
    assert (first["thinking"], first["output_config"]) == ({"type": "adaptive"}, {"effort": "low"})
    assert [turn["role"] for turn in third["messages"]] == ["user", "assistant"] * 2 + ["user"]
    assert [block["type"] for block in second["messages"][1]["content"]] == [
        "thinking",
        "tool_use",
        "tool_use",
    ]
    assert [block["content"][0]["text"] for block in second["messages"][2]["content"]] == [
        "up: a door",
        "around: a door",
    ]
    shown, silent = third["messages"][4]["content"]
    assert [part["type"] for part in shown["content"]] == ["text", "image"]
    assert silent["is_error"]
    steps = agent_steps(run)
    assert [step.reasoning for step in steps] == ["first", None, None]
    assert [step.finish_reason for step in steps] == ["tool_calls", "tool_calls", "stop"]
    assert [len(step.tool_calls) for step in steps] == [2, 2, 0]
    assert steps[1].content == "I go."


@STREAMED
async def test_tokens_and_their_cost_are_in_the_trace(task, stream):
    async with AnthropicMessages([say("door")]) as server:
        run = await play(task, server, stream=stream)
    usage = run.trace.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (100, 20, 30)
    dollars = 60 * 3.0 + 30 * 0.3 + 10 * 3.75 + 20 * 15.0
    assert usage.cost_usd == pytest.approx(dollars / 1e6)


async def test_the_prefix_of_the_conversation_is_cached(task):
    turns = [[call("look", f"t{number}")] for number in range(4)]
    async with AnthropicMessages(*turns, [say("door")]) as server:
        run = await play(task, server, system_prompt="Be brief.")
    assert (run.reward, server.refused) == (1.0, [])
    last = server.requests[-1]
    assert "cache_control" in last["system"][-1]
    users = [turn["content"] for turn in last["messages"] if turn["role"] == "user"]
    marked = ["cache_control" in blocks[-1] for blocks in users]
    assert marked == [False] * (len(users) - 2) + [True, True]


@STREAMED
async def test_a_refusal_is_recorded_as_one_and_its_calls_are_not_made(task, stream):
    refusal = {
        "content": [say("I"), call("look", "t1"), call("look", "t2")],
        "stop_reason": "refusal",
        "stop_details": {"type": "refusal", "category": "cyber", "explanation": "I will not."},
    }
    async with AnthropicMessages(refusal) as server:
        run = await play(task, server, stream=stream, auto_respond=True)
    (step,) = agent_steps(run)
    assert (step.refusal, step.finish_reason) == ("I will not. (cyber)", "refusal")
    assert (run.trace.stop_reason, tool_steps(run)) == ("done", [])


@STREAMED
async def test_what_tools_answer_can_be_cited(task, stream):
    note = {
        "type": "char_location",
        "cited_text": "a door",
        "document_index": 0,
        "document_title": "look",
        "start_char_index": 8,
        "end_char_index": 14,
        "file_id": None,
    }
    found = {
        "type": "web_search_result_location",
        "cited_text": "doors open",
        "encrypted_index": "E",
        "title": "Doors",
        "url": "https://example.org",
    }
    server = AnthropicMessages(
        [call("look", "t1")], [say("It is "), say("a door", note), say(" that opens.", found)]
    )
    async with server:
        run = await play(
            task,
            server,
            stream=stream,
            citations_enabled=True,
            hosted_tools=[{"type": "web_search_20250305", "name": "web_search"}],
        )
    (result,) = server.requests[1]["messages"][2]["content"]
    assert result["content"][0]["source"]["data"] == "around: a door"
    assert run.trace.content == "It is a door that opens."
    first, second = agent_steps(run)[-1].citations
    assert (first.text, first.source) == ("a door", "look")
    # For which stretch of the answer it is cited.
    assert run.trace.content[first.start_index : first.end_index] == "a door"
    assert run.trace.content[second.start_index : second.end_index] == " that opens."
    assert (second.text, second.source, second.title) == (
        "doors open",
        "https://example.org",
        "Doors",
    )
    assert server.refused == []


@STREAMED
async def test_a_paused_turn_is_gone_on_with(task, stream):
    search = {
        "type": "server_tool_use",
        "id": "srv1",
        "name": "web_search",
        "input": {"query": "doors"},
    }
    found = {"type": "web_search_tool_result", "tool_use_id": "srv1", "content": []}
    server = AnthropicMessages(
        {"content": [say("Let me see."), search], "stop_reason": "pause_turn"},
        [found, call("look", "t1")],
        [say("door")],
    )
    hosted = [{"type": "web_search_20250305", "name": "web_search"}]
    async with server:
        run = await play(task, server, stream=stream, hosted_tools=hosted)
    assert (run.reward, server.refused) == (1.0, [])
    steps = agent_steps(run)
    assert [step.usage.llm_call_count for step in steps] == [2, 1]
    assert steps[0].usage.prompt_tokens == 200
    assert [block["type"] for block in server.requests[2]["messages"][1]["content"]] == [
        "text",
        "server_tool_use",
        "web_search_tool_result",
        "tool_use",
    ]


async def test_code_runs_on_in_the_container_it_ran_in(task):
    ran = {"content": [call("look", "t1")], "container": {"id": "box", "expires_at": "2026-12-01"}}
    hosted = [{"type": "code_execution_20250825", "name": "code_execution"}]
    async with AnthropicMessages(ran, [say("door")]) as server:
        await play(task, server, hosted_tools=hosted)
    assert [body.get("container") for body in server.requests] == [None, "box"]


@STREAMED
async def test_a_turn_that_was_cut_off_ends_the_run_or_is_gone_on_from(task, stream):
    cut = {"content": [say("hm"), call("look", "t1", wh="")], "stop_reason": "max_tokens"}
    async with AnthropicMessages(cut) as server:
        run = await play(task, server, stream=stream, max_tokens=64)
    assert (server.requests[0]["max_tokens"], run.trace.stop_reason) == (64, "length")
    assert (agent_steps(run)[0].finish_reason, run.trace.content) == ("length", "hm")
    async with AnthropicMessages(cut, [say("door")]) as server:
        run = await play(task, server, stream=stream, stop_on=[])
    assert (run.reward, server.refused, tool_steps(run)) == (1.0, [], [])


@STREAMED
async def test_a_thought_that_was_cut_off_is_recorded_and_not_sent_back(task, stream):
    cut = {"content": [think("so long", "")], "stop_reason": "max_tokens"}
    async with AnthropicMessages(cut, [say("door")]) as server:
        run = await play(task, server, stream=stream, stop_on=[])
    assert (run.reward, server.refused) == (1.0, [])
    assert agent_steps(run)[0].reasoning == "so long"
    assert [turn["role"] for turn in server.requests[1]["messages"]] == ["user"]


async def test_turns_that_may_take_long_are_streamed(task):
    async with AnthropicMessages([call("look", "t1")], [say("door")]) as server:
        run = await play(task, server, max_tokens=64_000, model="claude-opus-5")
    assert run.reward == 1.0
    assert [body.get("stream") for body in server.requests] == [True, True]


async def test_a_budget_of_thoughts_fits_the_turn_or_is_left_out(task):
    thinking = {"type": "enabled", "budget_tokens": 2_000}
    turns = [[think("hm", "s1"), call("look", "t1")], [say("door")]]
    async with AnthropicMessages(*turns) as server:
        run = await play(task, server, thinking=thinking, max_tokens=2_010, total_tokens=2_015)
    assert (run.reward, server.refused) == (1.0, [])
    assert ["thinking" in body for body in server.requests] == [True, False]


async def test_names_that_the_wire_refuses_are_changed_and_found_again(task):
    async with AnthropicMessages([call("doors_open_wide", "t1")], [say("door")]) as server:
        run = await play(task, server)
    (step,) = tool_steps(run)
    assert (step.call.name, step.result.text) == ("doors.open wide", "it is open")
    assert server.refused == []


async def test_the_gateway_is_asked_where_there_is_no_key(task, monkeypatch):
    async with AnthropicMessages([say("door")], [say("door")]) as server:
        monkeypatch.setenv("HUD_API_URL", server.url)
        monkeypatch.setenv("HUD_API_KEY", KEY)
        by_gateway = await play(task, server, base_url=None, api_key=None)
        monkeypatch.setenv("HUD_API_URL", "http://127.0.0.1:9")
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        by_key = await play(task, server, base_url=None, api_key=None)
    assert (by_gateway.reward, by_key.reward, server.refused) == (1.0, 1.0, [])
