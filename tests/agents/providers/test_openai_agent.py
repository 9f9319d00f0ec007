"""OpenAI's agent, against a server that refuses what the documented wire forbids."""

from __future__ import annotations

import asyncio

import pytest
from tests.agents.rooms import STREAMED, agent_steps, played
from tests.agents.servers.loopback import (
    BreakOff,
    Hang,
    HangUp,
    Raw,
    Status,
    StreamError,
    closing_agent,
)
from tests.agents.servers.openai_responses import (
    KEY,
    OpenAIResponses,
    call,
    refuse,
    say,
    think,
)

from hud.agents import OpenAIAgent
from hud.errors import RefusedError
from hud.eval.rollouts import rollout
from hud.inference.prices import price_of
from hud.trace import ToolStep
from hud.trace.recording.recorder import NullRecorder

pytestmark = pytest.mark.usefixtures("waits")


async def play(task, server, **config):
    config = {"model": "gpt-5.6", "base_url": f"{server.url}/v1", "api_key": KEY, **config}
    return await played(task, OpenAIAgent(**config))


@STREAMED
async def test_reasoning_goes_back_as_it_came_and_parallel_calls_are_all_answered(task, stream):
    server = OpenAIResponses(
        [think("first", "gAAAA-1"), call("look", "c1", {"where": "up"}), call("look", "c2")],
        [think("", "gAAAA-2"), say("I go."), call("picture", "c3")],
        [say("door")],
    )
    async with server:
        run = await play(
            task, server, stream=stream, system_prompt="Be brief.", reasoning={"effort": "low"}
        )
    assert (run.reward, run.error, server.refused) == (1.0, None, [])
    first, second, third = server.requests
    assert first["instructions"] == "Be brief."
    assert first["store"] is False
    assert first["include"] == ["reasoning.encrypted_content"]
    assert first["reasoning"] == {"effort": "low"}
    assert [item["type"] for item in second["input"]] == [
        "message",
        "reasoning",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
    ]
    assert second["input"][1]["encrypted_content"] == "gAAAA-1"
    outputs = {
        item["call_id"]: item["output"]
        for item in third["input"]
        if item["type"] == "function_call_output"
    }
    assert (outputs["c1"], outputs["c2"]) == ("up: a door", "around: a door")
    assert [part["type"] for part in outputs["c3"]] == ["input_text", "input_image"]
    steps = agent_steps(run)
    assert [step.reasoning for step in steps] == ["first", None, None]
    assert [step.finish_reason for step in steps] == ["tool_calls", "tool_calls", "stop"]
    assert [len(step.tool_calls) for step in steps] == [2, 1, 0]
    assert steps[1].content == "I go."
    assert steps[0].model == "gpt-5.6-2026-07-01"


@STREAMED
async def test_tokens_and_their_cost_are_in_the_trace(task, stream):
    async with OpenAIResponses([say("door")]) as server:
        run = await play(task, server, stream=stream)
    usage = run.trace.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (100, 20, 40)
    price = price_of("gpt-5.6")
    cost = 60 * price.input + 40 * price.cached + 20 * price.output
    assert usage.cost_usd == pytest.approx(cost / 1e6)


async def test_a_model_of_unknown_price_has_no_cost(task):
    async with OpenAIResponses([say("door")]) as server:
        run = await play(task, server, model="mine")
    assert run.trace.usage.cost_usd is None


@STREAMED
async def test_a_refusal_is_recorded_as_one(task, stream):
    async with OpenAIResponses([refuse("I will not.")]) as server:
        run = await play(task, server, stream=stream, auto_respond=True)
    (step,) = agent_steps(run)
    assert (step.refusal, step.content, run.trace.stop_reason) == ("I will not.", None, "done")


@STREAMED
async def test_the_answer_is_graded_without_the_remarks_beside_it(task, stream):
    remark = {**say("I have looked around."), "phase": "commentary"}
    server = OpenAIResponses(
        [remark, call("look", "c1")], [remark, {**say("door"), "phase": "final_answer"}]
    )
    async with server:
        run = await play(task, server, stream=stream)
    first, last = agent_steps(run)
    assert (run.reward, server.refused) == (1.0, [])
    assert first.content == "I have looked around."
    assert (last.content, last.extra["commentary"]) == ("door", "I have looked around.")


async def test_sources_are_citations(task):
    note = {
        "type": "url_citation",
        "url": "https://example.org",
        "title": "Doors",
        "start_index": 0,
        "end_index": 4,
    }
    async with OpenAIResponses([say("door", annotations=[note])]) as server:
        run = await play(task, server, hosted_tools=[{"type": "web_search"}])
    (citation,) = agent_steps(run)[0].citations
    assert (citation.text, citation.source, citation.title) == (
        "door",
        "https://example.org",
        "Doors",
    )
    assert server.requests[0]["tools"][-1] == {"type": "web_search"}


CUT = {
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
    "output": [think("long", "gAAAA-cut")],
}


@STREAMED
async def test_a_turn_that_was_cut_off_ends_the_run(task, stream):
    async with OpenAIResponses(CUT) as server:
        run = await play(task, server, stream=stream, max_output_tokens=64)
    assert server.requests[0]["max_output_tokens"] == 64
    assert run.trace.stop_reason == "length"
    assert agent_steps(run)[0].finish_reason == "length"


async def test_a_turn_that_was_cut_off_can_be_gone_on_from(task):
    half = {**call("look", "c9", '{"wh'), "status": "incomplete"}
    cut = {**CUT, "output": [say("hm"), think("long", "gAAAA-cut"), half]}
    async with OpenAIResponses(cut, [say("door")]) as server:
        run = await play(task, server, stop_on=[])
    assert (run.reward, server.refused) == (1.0, [])
    assert [item["type"] for item in server.requests[1]["input"]] == ["message"] * 3


async def test_arguments_that_are_no_object_are_the_tools_error(task):
    async with OpenAIResponses([call("look", "c1", "{oops")], [say("door")]) as server:
        run = await play(task, server)
    (step,) = (step for step in run.trace.steps if isinstance(step, ToolStep))
    assert step.result.is_error
    assert run.reward == 1.0


async def test_names_that_the_wire_refuses_are_changed_and_found_again(task):
    async with OpenAIResponses([call("doors_open_wide", "c1")], [say("door")]) as server:
        run = await play(task, server)
    (step,) = (step for step in run.trace.steps if isinstance(step, ToolStep))
    assert (step.call.name, step.result.text) == ("doors.open wide", "it is open")
    assert server.refused == []


@STREAMED
async def test_busy_and_broken_servers_are_asked_again(task, stream, waits):
    server = OpenAIResponses(
        Status(
            429, {"error": {"message": "slow", "code": "rate_limit_exceeded"}}, {"retry-after": "7"}
        ),
        Status(503, None, {"retry-after-ms": "1500"}),
        HangUp(),
        Raw(b"<html>bad gateway</html>", "text/html"),
        [say("door")],
    )
    async with server:
        run = await play(task, server, stream=stream)
    assert run.reward == 1.0
    assert len(server.requests) == 5
    assert waits[:2] == [7.0, 1.5]
    assert len(agent_steps(run)) == 1


async def test_streams_that_break_off_are_asked_again(task):
    server = OpenAIResponses(
        BreakOff([think("hm"), say("wall")], 5),
        BreakOff([think("hm"), say("wall")], 7, torn=True),
        StreamError([say("wall")], 3, {"code": "server_error", "message": "Sorry."}),
        {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "Later."}},
        [say("door")],
    )
    async with server:
        run = await play(task, server, stream=True)
    assert (run.reward, len(server.requests)) == (1.0, 5)


@STREAMED
async def test_answers_that_are_none_are_asked_again(task, stream):
    kind = "text/event-stream" if stream else "application/json"
    nonsense = [b'data: {"type": "respo\n\n', b"data: [1]\n\n", b"data: {}\n\n", b""]
    if not stream:
        nonsense = [b'{"id": ', b"[1]", b'{"status": "in_progress"}', b""]
    server = OpenAIResponses(*[Raw(body, kind) for body in nonsense], [say("door")])
    async with server:
        run = await play(task, server, stream=stream)
    assert (run.reward, run.error, len(server.requests)) == (1.0, None, 5)


@STREAMED
async def test_silence_is_asked_again_after_its_time(task, stream):
    async with OpenAIResponses(Hang(), [say("door")]) as server:
        run = await play(task, server, stream=stream, request_timeout_seconds=0.2)
    assert (run.reward, len(server.requests)) == (1.0, 2)


async def test_a_server_that_stays_broken_leaves_the_run_unmeasured(task):
    async with OpenAIResponses(*[Status(500)] * 15) as server:
        run = await play(task, server)
    assert (run.reward, run.failure_kind) == (None, "infrastructure")
    assert "500" in run.error
    assert len(server.requests) == 15  # Five attempts, in each of three rollouts.


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "invalid_api_key"), (404, "model_not_found"), (429, "insufficient_quota")],
)
async def test_what_no_run_can_have_ends_the_job(task, status, code):
    refusal = Status(status, {"error": {"message": f"no: {KEY}-0123456789abcdef", "code": code}})
    async with OpenAIResponses(refusal) as server:
        with pytest.raises(RefusedError) as refused:
            await play(task, server)
    assert refused.value.everywhere
    assert len(server.requests) == 1
    assert "0123456789abcdef" not in str(refused.value)


async def test_a_conversation_that_outgrows_the_window_ends_there_and_is_graded(task):
    body = {
        "error": {
            "message": "Your input exceeds the context window of this model.",
            "code": "context_length_exceeded",
        }
    }
    async with OpenAIResponses([say("door"), call("look", "c1")], Status(400, body)) as server:
        run = await play(task, server)
    assert (run.reward, run.trace.stop_reason) == (1.0, "length")
    assert "context window" in run.trace.extra["context_overflow"]


@STREAMED
async def test_a_filtered_turn_is_a_refusal(task, stream):
    cut = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
    async with OpenAIResponses({**cut, "output": [say("do")]}) as server:
        run = await play(task, server, stream=stream)
    (step,) = agent_steps(run)
    assert (step.finish_reason, run.trace.stop_reason) == ("content_filter", "done")
    assert "filter" in step.refusal


async def test_the_budget_of_tokens_bounds_a_turn(task):
    async with OpenAIResponses([call("look", "c1")], [say("door")]) as server:
        run = await play(task, server, total_tokens=3_000)
    assert [body["max_output_tokens"] for body in server.requests] == [3_000, 2_980]
    assert run.reward == 1.0


async def test_models_without_reasoning_are_not_asked_for_it(task):
    async with OpenAIResponses([say("door")]) as server:
        run = await play(task, server, model="gpt-4.1")
    assert run.reward == 1.0
    assert "include" not in server.requests[0]


async def test_a_key_of_the_provider_goes_before_the_gateway(task, monkeypatch):
    async with OpenAIResponses([say("door")], [say("door")]) as server:
        monkeypatch.setenv("HUD_API_URL", f"{server.url}/v1")
        monkeypatch.setenv("HUD_API_KEY", KEY)
        by_gateway = await play(task, server, base_url=None, api_key=None)
        monkeypatch.setenv("HUD_API_URL", "http://127.0.0.1:9")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        by_key = await play(task, server, base_url=None, api_key=None)
    assert (by_gateway.reward, by_key.reward, server.refused) == (1.0, 1.0, [])


class Everybody(OpenAIResponses):
    """Answers many conversations at once, each by what it holds so far."""

    async def answer(self, request, body, turn):
        del turn
        await asyncio.sleep(0.01)
        answered = [i["call_id"] for i in body["input"] if i["type"] == "function_call_output"]
        if len(answered) < 2:
            said = [think("hm"), call("look", f"c{len(answered)}", {"where": str(len(answered))})]
        else:
            said = [say("door")]
        return await super().answer(request, body, said)


@pytest.mark.slow
@STREAMED
async def test_one_agent_plays_many_runs_at_once(task, stream):
    server = Everybody(*range(100))
    async with server:
        config = {"base_url": f"{server.url}/v1", "api_key": KEY, "stream": stream}
        async with closing_agent(OpenAIAgent(**config)) as agent:
            runs = await asyncio.gather(
                *(
                    rollout(
                        task,
                        agent,
                        runtime=lambda task: task.environment.run(),
                        recorder=NullRecorder(),
                    )
                    for _ in range(30)
                )
            )
    assert (server.refused, {run.reward for run in runs}) == ([], {1.0})
    assert {len(agent_steps(run)) for run in runs} == {3}
    traces = [headers["trace-id"] for headers in server.headers]
    assert {traces.count(run.trace_id) for run in runs} == {3}


async def test_a_run_that_is_cancelled_leaves_no_request_behind(task):
    come, left = asyncio.Event(), asyncio.Event()

    class Slow(OpenAIResponses):
        async def answer(self, request, body, turn):
            come.set()
            try:
                await self.closing.wait()
            finally:
                left.set()
            return await super().answer(request, body, turn)

    async with Slow([say("door")]) as server:
        playing = asyncio.create_task(play(task, server))
        await come.wait()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await asyncio.wait_for(left.wait(), 5)


async def test_settings_that_nobody_set_are_the_providers(task):
    async with OpenAIResponses([say("door")]) as server:
        await play(task, server)
    assert not {"max_output_tokens", "temperature", "top_p"} & server.requests[0].keys()
    async with OpenAIResponses([say("door")]) as server:
        await play(task, server, temperature=1.0, max_output_tokens=1024)
    body = server.requests[0]
    assert (body["temperature"], body["max_output_tokens"]) == (1.0, 1024)
