"""Gemini's agent, against a server that refuses what the documented wire forbids."""

from __future__ import annotations

import pytest
from tests.agents.rooms import STREAMED, agent_steps, played, tool_steps
from tests.agents.servers.gemini import KEY, GeminiContent, call, say, think
from tests.agents.servers.loopback import BreakOff, Hang, HangUp, Raw, Status, StreamError

from hud.agents import GeminiAgent
from hud.errors import RefusedError

pytestmark = pytest.mark.usefixtures("waits")
SIGN = "+/8A"


async def play(task, server, *tools, agent_type=GeminiAgent, **config):
    config = {"base_url": server.url, "api_key": KEY, **config}
    return await played(task, agent_type(**config), *tools)


@STREAMED
async def test_signatures_go_back_as_they_came_and_parallel_calls_are_all_answered(task, stream):
    server = GeminiContent(
        [
            think("first "),
            think("thought"),
            call("look", "f1", SIGN, where="up"),
            call("look", "f2"),
        ],
        [say("I go."), call("picture", "f3", "AAAB"), call("fail", "f4")],
        [say("door"), {"text": "", "thoughtSignature": "////"}],
    )
    async with server:
        run = await play(
            task, server, stream=stream, system_prompt="Be brief.", thinking_level="low", top_k=5
        )
    assert (run.reward, run.error, server.refused) == (1.0, None, [])
    first, second, third = server.requests
    assert first["systemInstruction"]["parts"] == [{"text": "Be brief."}]
    assert first["generationConfig"] == {
        "maxOutputTokens": 8192,
        "topK": 5,
        "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"},
    }
    assert [content["role"] for content in third["contents"]] == ["user", "model"] * 2 + ["user"]
    responses = [part["functionResponse"] for part in second["contents"][2]["parts"]]
    assert [response["response"] for response in responses] == [
        {"output": "up: a door"},
        {"output": "around: a door"},
    ]
    shown, failed = [part["functionResponse"] for part in third["contents"][4]["parts"]]
    assert (shown["response"], len(shown["parts"])) == ({"output": "here:"}, 1)
    assert failed["response"] == {"error": "no luck"}
    steps = agent_steps(run)
    assert [step.reasoning for step in steps] == ["first thought", None, None]
    assert [step.finish_reason for step in steps] == ["tool_calls", "tool_calls", "stop"]
    assert [len(step.tool_calls) for step in steps] == [2, 2, 0]
    assert steps[1].content == "I go."
    assert steps[0].model == "gemini-loopback-001"


@pytest.mark.slow
@STREAMED
async def test_calls_without_ids_are_answered_in_their_order(task, stream):
    server = GeminiContent([call("look", where="a"), call("look", where="b")], [say("door")])
    async with server:
        run = await play(task, server, stream=stream, model="gemini-2.5-flash")
    assert (run.reward, server.refused) == (1.0, [])
    ids = [step.call.id for step in tool_steps(run)]
    assert len(set(ids)) == 2
    parts = server.requests[1]["contents"][2]["parts"]
    assert [part["functionResponse"]["response"]["output"] for part in parts] == [
        "a: a door",
        "b: a door",
    ]


async def test_older_models_have_pictures_beside_the_responses(task):
    async with GeminiContent([call("picture"), call("look")], [say("door")]) as server:
        run = await play(task, server, model="gemini-2.5-pro")
    assert (run.reward, server.refused) == (1.0, [])
    parts = server.requests[1]["contents"][2]["parts"]
    assert [next(iter(part)) for part in parts] == ["functionResponse"] * 2 + ["inlineData"]


@STREAMED
async def test_tokens_and_their_cost_are_in_the_trace(task, stream):
    async with GeminiContent([say("door")]) as server:
        run = await play(task, server, stream=stream)
    usage = run.trace.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (100, 20, 40)
    assert usage.cost_usd == pytest.approx((60 * 2.0 + 40 * 0.2 + 20 * 12.0) / 1e6)


REFUSALS = [
    ({"parts": [], "finishReason": "PROHIBITED_CONTENT"}, "PROHIBITED_CONTENT"),
    ({"parts": [say("I")], "finishReason": "SAFETY"}, "SAFETY"),
    ({"promptFeedback": {"blockReason": "BLOCKLIST"}}, "BLOCKLIST"),
]


@STREAMED
@pytest.mark.parametrize(("turn", "told"), REFUSALS, ids=["candidate", "midway", "prompt"])
async def test_a_refusal_is_recorded_as_one(task, stream, turn, told):
    async with GeminiContent(turn) as server:
        run = await play(task, server, stream=stream, auto_respond=True)
    (step,) = agent_steps(run)
    assert told in step.refusal
    assert (step.finish_reason, run.trace.stop_reason) == ("refusal", "done")


@STREAMED
async def test_sources_are_citations(task, stream):
    grounding = {
        "groundingChunks": [{"web": {"uri": "https://example.org", "title": "Doors"}}],
        "groundingSupports": [
            {
                "segment": {"startIndex": 3, "endIndex": 7, "text": "Tür"},
                "groundingChunkIndices": [0],
            }
        ],
    }
    turn = {"parts": [say("ja Tür")], "groundingMetadata": grounding}
    async with GeminiContent(turn) as server:
        run = await play(task, server, stream=stream, hosted_tools=[{"google_search": {}}])
    (citation,) = agent_steps(run)[0].citations
    assert (citation.text, citation.source, citation.title) == (
        "Tür",
        "https://example.org",
        "Doors",
    )
    # The wire counts bytes.
    assert (citation.start_index, citation.end_index) == (3, 6)
    assert {"googleSearch": {}} in server.requests[0]["tools"]


@STREAMED
async def test_what_the_provider_looked_up_goes_back_with_the_functions_that_followed(task, stream):
    search = {
        "toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["doors"]}, "id": "g1"},
        "thoughtSignature": SIGN,
    }
    found = {
        "toolResponse": {"toolType": "GOOGLE_SEARCH_WEB", "response": {"ok": 1}, "id": "g1"},
        "thoughtSignature": SIGN,
    }
    server = GeminiContent([search, found, call("look", "f1", SIGN)], [say("door")])
    async with server:
        run = await play(task, server, stream=stream, hosted_tools=[{"google_search": {}}])
    assert (run.reward, server.refused) == (1.0, [])
    sent = server.requests[1]["contents"][1]["parts"]
    assert [part.keys() - {"thoughtSignature"} for part in sent] == [
        {"toolCall"},
        {"toolResponse"},
        {"functionCall"},
    ]


@STREAMED
async def test_a_turn_that_was_cut_off_ends_the_run_or_is_gone_on_from(task, stream):
    cut = {"parts": [say("hm")], "finishReason": "MAX_TOKENS"}
    async with GeminiContent(cut) as server:
        run = await play(task, server, stream=stream, max_output_tokens=64)
    assert server.requests[0]["generationConfig"]["maxOutputTokens"] == 64
    assert (run.trace.stop_reason, agent_steps(run)[0].finish_reason) == ("length", "length")
    async with GeminiContent(cut, [say("door")]) as server:
        run = await play(task, server, stream=stream, stop_on=[])
    assert (run.reward, server.refused) == (1.0, [])


@STREAMED
async def test_a_call_that_cannot_be_read_is_said_to_be_one(task, stream):
    broken = {"parts": [], "finishReason": "MALFORMED_FUNCTION_CALL"}
    async with GeminiContent(broken) as server:
        run = await play(task, server, stream=stream)
    assert run.trace.stop_reason == "malformed_tool_call"
    async with GeminiContent(broken, [say("door")]) as server:
        run = await play(task, server, stream=stream, stop_on=[])
    assert (run.reward, server.refused) == (1.0, [])


async def test_names_that_the_wire_refuses_are_changed_and_found_again(task):
    async with GeminiContent([call("doors_open_wide", "f1")], [say("door")]) as server:
        run = await play(task, server)
    (step,) = tool_steps(run)
    assert (step.call.name, step.result.text) == ("doors.open wide", "it is open")


@STREAMED
async def test_busy_and_broken_servers_are_asked_again(task, stream, waits):
    slow = {"error": {"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}}
    server = GeminiContent(
        Status(429, slow, {"retry-after": "7"}),
        Status(503, {"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}),
        HangUp(),
        Raw(b"<html>bad gateway</html>", "text/html"),
        [say("door")],
    )
    async with server:
        run = await play(task, server, stream=stream)
    assert (run.reward, len(server.requests), waits[0]) == (1.0, 5, 7.0)
    assert len(agent_steps(run)) == 1


async def test_streams_that_break_off_are_asked_again(task):
    overloaded = {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}
    server = GeminiContent(
        BreakOff([say("wall")], 1),
        BreakOff([say("wall")], 2, torn=True),
        StreamError([say("wall")], 1, overloaded),
        [say("door")],
    )
    async with server:
        run = await play(task, server, stream=True)
    assert (run.reward, len(server.requests)) == (1.0, 4)


@STREAMED
async def test_silence_is_asked_again_after_its_time(task, stream):
    async with GeminiContent(Hang(), [say("door")]) as server:
        run = await play(task, server, stream=stream, request_timeout_seconds=0.2)
    assert (run.reward, len(server.requests)) == (1.0, 2)


async def test_a_server_that_stays_broken_leaves_the_run_unmeasured(task):
    async with GeminiContent(*[Status(529)] * 15) as server:
        run = await play(task, server)
    assert (run.reward, run.failure_kind) == (None, "infrastructure")
    assert len(server.requests) == 15  # Five attempts, in each of three rollouts.


async def test_a_model_that_there_is_not_ends_the_job(task):
    gone = {"error": {"code": 404, "message": "no such model", "status": "NOT_FOUND"}}
    async with GeminiContent(Status(404, gone)) as server:
        with pytest.raises(RefusedError) as refused:
            await play(task, server)
    assert refused.value.everywhere
    assert "no such model" in str(refused.value)


TOO_LONG = {
    "error": {
        "code": 400,
        "message": "The input token count (9) exceeds the maximum number of tokens allowed (8).",
        "status": "INVALID_ARGUMENT",
    }
}


async def test_a_conversation_that_outgrows_the_window_loses_its_oldest_pictures(task):
    looks = [[call("picture", f"f{number}", SIGN)] for number in range(4)]
    async with GeminiContent(*looks, Status(400, TOO_LONG), [say("door")]) as server:
        run = await play(task, server, context_policy="drop_images")
    assert (run.reward, server.refused, run.trace.extra["dropped_images"]) == (1.0, [], 2)
    pictures = [
        "parts" in part["functionResponse"]
        for content in server.requests[-1]["contents"]
        for part in content["parts"]
        if "functionResponse" in part
    ]
    assert pictures == [False, False, True, True]


async def test_the_gateway_is_asked_where_there_is_no_key(task, monkeypatch):
    async with GeminiContent([say("door")], [say("door")]) as server:
        monkeypatch.setenv("HUD_API_URL", server.url)
        monkeypatch.setenv("HUD_API_KEY", KEY)
        by_gateway = await play(task, server, base_url=None, api_key=None)
        monkeypatch.setenv("HUD_API_URL", "http://127.0.0.1:9")
        monkeypatch.setenv("GEMINI_API_KEY", KEY)
        monkeypatch.setenv("GEMINI_BASE_URL", server.url)
        by_key = await play(task, server, base_url=None, api_key=None)
    assert (by_gateway.reward, by_key.reward, server.refused) == (1.0, 1.0, [])
    assert all(len(head["trace-id"]) == 32 for head in map(_lowered, server.headers))


def _lowered(head):
    return {name.lower(): value for name, value in head.items()}
