"""Answers of Anthropic's, Gemini's and OpenAI's Responses APIs as servers beside them send them: read as meant, or refused."""

from __future__ import annotations

import copy
import json
import re

import httpx
import pytest

from hud.errors import ContextOverflow, InfrastructureFault
from hud.inference import retries as asking
from hud.inference.dialects.events import turns_of
from hud.inference.dialects.request import GenerationRequest
from hud.inference.endpoints import Endpoint
from hud.inference.retries import BrokenAnswer, Provider
from hud.inference.served_model import ServedModel
from hud.trace import SamplingParams, ToolSpec
from hud_integrations.anthropic.codec import AnthropicCodec
from hud_integrations.gemini.codec import GeminiCodec
from hud_integrations.openai.codec import ResponsesCodec

HELLO = [{"role": "user", "content": "hello"}]
LOOK = ToolSpec(name="look", description="")
CODECS = {"anthropic": AnthropicCodec(), "gemini": GeminiCodec(), "responses": ResponsesCodec()}


def wire(dialect, messages=HELLO):
    request = GenerationRequest(model="m", messages=messages, tools=[LOOK], stream=True)
    return CODECS[dialect].request("m", request)


def answer(dialect, *calls, **more):
    """A whole answer of calls: name, id and arguments, each of which is left out if it is `...`."""

    def fields(**values):
        return {name: value for name, value in values.items() if value is not ...}

    if dialect == "anthropic":
        blocks = [{"type": "tool_use", **fields(name=n, id=i, input=a)} for n, i, a in calls]
        return {"type": "message", "content": blocks, "stop_reason": "tool_use", **more}
    if dialect == "gemini":
        parts = [{"functionCall": fields(name=n, id=i, args=a)} for n, i, a in calls]
        candidate = {"content": {"parts": parts}, "finishReason": "STOP", **more}
        return {"candidates": [candidate]}
    items = [
        {"type": "function_call", **fields(name=n, call_id=i, arguments=a)} for n, i, a in calls
    ]
    return {"status": "completed", "output": items, **more}


def read(dialect, body):
    return wire(dialect).completion(copy.deepcopy(body))


@pytest.mark.parametrize("dialect", CODECS)
@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"a": 1}, {"a": 1}),
        ('{"a": 1}', {"a": 1}),
        (json.dumps('{"a": 1}'), {"a": 1}),
        ("", {}),
        (None, {}),
        ("null", {}),
        (..., {}),
        ('{"a": ', '{"a": '),
        ("[1]", "[1]"),
        ([1], "[1]"),
        (7, "7"),
    ],
)
def test_arguments_in_any_form_are_read_or_left_as_they_are(dialect, given, meant):
    completion = read(dialect, answer(dialect, ("look", "x", given)))
    (call,) = completion.tool_calls
    assert (call.name, call.arguments) == ("look", meant)
    assert completion.finish_reason == "tool_calls"


@pytest.mark.parametrize("dialect", CODECS)
@pytest.mark.parametrize("ids", [("x", "x"), ("", ""), (None, None), (..., ...), ("x", "y")])
def test_each_call_has_an_id_of_its_own_and_its_result_finds_it(dialect, ids):
    calls = [("look", identifier, {"a": n}) for n, identifier in enumerate(ids)]
    completion = read(dialect, answer(dialect, *calls))
    first, second = completion.tool_calls
    assert first.id != second.id
    assert all((first.id, second.id))
    turn = {
        "role": "assistant",
        "content": None,
        "tool_calls": [first.message(), second.message()],
        "verbatim": completion.verbatim,
    }
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": f"result {n}"}
        for n, call in enumerate((first, second))
    ]
    sent = json.dumps(wire(dialect, [*HELLO, turn, *results]).body)
    assert sent.index("result 0") < sent.index("result 1")


@pytest.mark.parametrize("dialect", CODECS)
@pytest.mark.parametrize("name", ["", None, ...])
def test_a_call_without_a_name_is_a_failure_of_the_server(dialect, name):
    with pytest.raises(BrokenAnswer, match="without a name"):
        read(dialect, answer(dialect, (name, "x", {})))


def test_arguments_that_are_no_object_are_repeated_as_one():
    completion = read("anthropic", answer("anthropic", ("look", "x", '{"a": ')))
    assert completion.verbatim["items"][0]["input"] == {"arguments": '{"a": '}


@pytest.mark.parametrize("arguments", ["", '{"a": '])
def test_a_call_that_an_incomplete_response_cut_off_is_not_made(arguments):
    body = answer("responses", ("look", "x", arguments), status="incomplete")
    completion = read("responses", body)
    assert (completion.tool_calls, completion.finish_reason) == ([], "length")


# -- Anthropic's streams -------------------------------------------------------------------------------------

START = {"type": "message_start", "message": {"type": "message", "content": [], "usage": {}}}
STOP = {"type": "message_stop"}


def ends(reason="tool_use"):
    return [{"type": "message_delta", "delta": {"stop_reason": reason}}, STOP]


def block(index, start, *deltas, stop=True):
    events = [{"type": "content_block_start", "index": index, "content_block": start}]
    events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [*events, {"type": "content_block_stop", "index": index}] if stop else events


def use(*pieces, index=0, given=None, stop=True, identifier="x"):
    start = {"type": "tool_use", "id": identifier, "name": "look", "input": given or {}}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block(index, start, *deltas, stop=stop)


def streamed(events):
    reader = wire("anthropic").reader()
    found = [event for item in events for event in reader.read(item)]
    return turns_of([*found, *reader.end()], 1)[0]


def joined(events):
    asked = wire("anthropic")
    return asked.completion(asked.joined(copy.deepcopy(events)))


STREAMS = {
    "in pieces": use("", '{"a"', ": 1}"),
    "at the start": use(given={"a": 1}),
    "at the start, with an empty piece": use("", given={"a": 1}),
    "text at the start": use(given='{"a": 1}'),
    "encoded twice": use(json.dumps('{"a": 1}')),
    "without a stop of its block": use('{"a": 1}', stop=False),
}


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("reason", ["tool_use", "end_turn"])
def test_a_streamed_input_is_read_in_every_form(stream, reason):
    events = [START, *STREAMS[stream], *ends(reason)]
    completion, turn = joined(events), streamed(events)
    assert [call.arguments for call in completion.tool_calls] == [{"a": 1}]
    assert [json.loads(call.arguments) for call in turn.calls] == [{"a": 1}]
    assert completion.finish_reason == turn.finished.reason == "tool_calls"


def test_a_streamed_call_without_input_has_none():
    events = [START, *use(""), *use(index=1, identifier="y"), *ends()]
    assert [call.arguments for call in joined(events).tool_calls] == [{}, {}]
    assert [call.arguments for call in streamed(events).calls] == ["{}", "{}"]


@pytest.mark.parametrize("pieces", [('{"a": ',), ("[1]",)])
def test_a_streamed_input_that_is_no_object_reaches_the_agent_and_no_client(pieces):
    events = [START, *use(*pieces), *ends()]
    assert [call.arguments for call in joined(events).tool_calls] == ["".join(pieces)]
    with pytest.raises(BrokenAnswer, match="no JSON object"):
        streamed(events)


@pytest.mark.parametrize("pieces", [(), ("",), ('{"a": ',)])
def test_a_streamed_call_that_was_cut_off_is_not_made(pieces):
    events = [START, *use(*pieces), *ends("max_tokens")]
    assert joined(events).tool_calls == []
    turn = streamed(events)
    assert [call.complete for call in turn.calls] == [False]
    assert turn.finished.reason == "length"


def test_text_at_the_start_of_a_block_is_text():
    told = {"type": "text_delta", "text": "lo"}
    events = [START, *block(0, {"type": "text", "text": "hel"}, told), *ends("end_turn")]
    assert joined(events).content == streamed(events).text == "hello"


@pytest.mark.parametrize(
    "events", [[], [START], [START, *use('{"a": 1}')], [START, STOP], [START, *use("{}"), STOP]]
)
def test_a_stream_without_a_stop_reason_is_no_answer(events):
    for reading in (joined, streamed):
        with pytest.raises(BrokenAnswer):
            reading(events)


# -- Bodies ---------------------------------------------------------------------------------------------------


@pytest.fixture
def no_waiting(monkeypatch):
    async def sleep(seconds):
        pass

    monkeypatch.setattr(asking, "sleep", sleep)


async def complete(dialect, body, stream=False):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    model = ServedModel(
        "m",
        Endpoint("http://server", "k", Provider("http://server")),
        CODECS[dialect],
        stream=stream,
        transport=httpx.MockTransport(lambda _: httpx.Response(200, content=content)),
    )
    return await model.complete(HELLO, [LOOK], SamplingParams())


def sse(*events):
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)


BODIES = {
    "empty": b"",
    "a page": b"<html>maintenance</html>",
    "an object": {},
    "null fields": {"content": None, "candidates": None, "output": None, "stop_reason": None},
    "fields of another type": {"content": 7, "candidates": 7, "output": 7},
    "text in lists": {
        "content": ["a"],
        "stop_reason": "end_turn",
        "candidates": ["a"],
        "output": ["a"],
    },
    "an error": {"type": "error", "error": {"type": "overloaded_error", "message": "down"}},
    "an error in words": {"error": "down"},
    "an error with a status": {"error": {"code": 503, "message": "down", "status": "UNAVAILABLE"}},
    "an error event": sse({"error": {"code": 500, "message": "down"}}),
    "an event of type error": sse({"type": "error", "code": "server_error", "message": "down"}),
    "a failed response": {
        "status": "failed",
        "output": [],
        "error": {"code": "server_error", "message": "down"},
    },
    "a cancelled response": {"status": "cancelled", "output": []},
    "a half event": b'data: {"type": "mess',
    "keep-alives": b": ping\n\nevent: ping\ndata: {}\n\n",
    "no reason": {"candidates": [{"content": {"parts": [{"text": "half"}]}}]},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", CODECS)
@pytest.mark.parametrize("body", BODIES)
async def test_a_200_that_is_no_answer_is_an_infrastructure_fault(
    dialect, body, stream, no_waiting
):
    with pytest.raises(InfrastructureFault):
        await complete(dialect, BODIES[body], stream)


@pytest.mark.parametrize("dialect", CODECS)
async def test_an_overflow_inside_a_200_is_an_overflow(dialect, no_waiting):
    error = {"type": "invalid_request_error", "message": "prompt is too long: 5 tokens > 4 maximum"}
    for body in ({"type": "error", "error": error}, sse({"type": "error", "error": error})):
        with pytest.raises(ContextOverflow):
            await complete(dialect, body)


# -- Ids that another server made ---------------------------------------------------------------------------------

LONG = "chatcmpl-tool-" + "0123456789abcdef" * 6


def foreign(*ids):
    calls = [
        {"id": given, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for given in ids
    ]
    results = [
        {"role": "tool", "tool_call_id": given, "content": f"result {n}"}
        for n, given in enumerate(ids)
    ]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


@pytest.mark.parametrize("ids", [("functions.look:0",), (LONG,), ("ü ü",), ("a b", "a.b")])
def test_foreign_ids_are_sent_in_a_form_that_anthropic_takes(ids):
    messages = [*HELLO, *foreign(*ids), *foreign(*ids)]
    body = wire("anthropic", messages).body
    assert wire("anthropic", messages).body == body  # A prompt cache knows the earlier messages.
    blocks = [each for message in body["messages"] for each in message["content"]]
    made = [each["id"] for each in blocks if each["type"] == "tool_use"]
    assert made == [each["tool_use_id"] for each in blocks if each["type"] == "tool_result"]
    assert len(set(made)) == 2 * len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in made)


@pytest.mark.parametrize("dialect", ["anthropic", "responses"])
def test_results_of_equal_ids_belong_to_their_calls_in_order(dialect):
    text = json.dumps(wire(dialect, [*HELLO, *foreign("same", "same"), *foreign(LONG)]).body)
    assert LONG not in text
    assert all(f"result {n}" in text for n in (0, 1))


SNAKES = [
    {
        "candidates": [
            {
                "content": {
                    "parts": [
                        {"text": "hm", "thought": True},
                        {
                            "function_call": {"name": "look", "args": {"at_once": {"a_b": 1}}},
                            "thought_signature": "c2ln",
                        },
                    ]
                },
                "finish_reason": "STOP",
            }
        ],
        "usage_metadata": {"prompt_token_count": 5, "candidates_token_count": 3},
        "model_version": "m-001",
    }
]


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_of_gemini_in_snake_case_is_read(streamed):
    request = wire("gemini")
    answered = copy.deepcopy(SNAKES)
    completion = request.completion(request.joined(answered) if streamed else answered[0])
    (call,) = completion.tool_calls
    assert (call.name, call.arguments) == ("look", {"at_once": {"a_b": 1}})
    assert (completion.finish_reason, completion.model) == ("tool_calls", "m-001")
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (5, 3)
    signed = completion.verbatim["items"][1]
    assert signed["thoughtSignature"] == "c2ln", "the next request repeats it"
