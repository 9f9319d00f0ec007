"""Chat completions as real servers send them, against the documentation: read as they are meant, or a failure of the server."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from hud.errors import ContextOverflow, InfrastructureFault, RefusedError
from hud.inference import retries as asking
from hud.inference.dialects.chat_completions.codec import ChatCodec
from hud.inference.dialects.events import turns_of
from hud.inference.dialects.request import GenerationRequest
from hud.inference.dialects.server_sent_events import events_in
from hud.inference.retries import AnsweredError, BrokenAnswer
from hud.inference.served_model import OpenAIChatModel
from hud.trace import SamplingParams, ToolSpec

HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [ToolSpec(name="look", description=""), ToolSpec(name="read", description="")]
LOOK, READ = ("look", {"a": 1}), ("read", {"b": "q"})


def part(name=None, arguments=None, **fields):
    """A piece of a call; fields that are None are left out, unless they are given."""
    function = {"name": name, "arguments": arguments}
    given = {key: value for key, value in function.items() if value is not None}
    return {**fields, "function": given}


def calls(*chunks):
    """A stream whose chunks hold pieces of calls, and its end."""
    deltas = [{"tool_calls": chunk if isinstance(chunk, list) else [chunk]} for chunk in chunks]
    return [choice(delta) for delta in deltas] + [choice({}, "tool_calls")]


def choice(delta=None, reason=None, **fields):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason, **fields}]}


def wire(choices=1):
    request = GenerationRequest(
        model="m", messages=HELLO, tools=TOOLS, stream=True, choices=choices
    )
    return ChatCodec().request("m", request)


def joined(events):
    asked = wire()
    return asked.completion(asked.joined(events))


def read(events, choices=1):
    """The turns of a stream that is read while it comes."""
    reader = wire(choices).reader()
    found = [event for item in events for event in reader.read(item)]
    return turns_of([*found, *reader.end()], choices)


A, B = '{"a": 1}', '{"b": "q"}'
STREAMS = {
    "documented": calls(
        part("look", "", index=0, id="x"),
        part(None, '{"a"', index=0),
        part(None, ": 1}", index=0),
        part("read", "", index=1, id="y"),
        part(None, B, index=1),
    ),
    "alternating": calls(
        part("look", '{"a"', index=0, id="x"),
        part("read", '{"b":', index=1, id="y"),
        part(None, ": 1}", index=0),
        part(None, ' "q"}', index=1),
    ),
    "equal indexes, other ids": calls(
        part("look", A, index=0, id="x"), part("read", B, index=0, id="y")
    ),
    "no indexes": calls(part("look", A, id="x"), part("read", B, id="y")),
    "no indexes, in pieces": calls(
        part("look", '{"a"', id="x"),
        part(None, ": 1}"),
        part("read", '{"b":', id="y"),
        part(None, ' "q"}', id="y"),
    ),
    "null indexes in one chunk": calls(
        [part("look", A, index=None, id="x"), part("read", B, index=None, id="y")]
    ),
    "indexes as text": calls(
        part("look", A, index="0", id="x"), part("read", B, index="1", id="y")
    ),
    "indexes from 1": calls(part("look", A, index=1, id="x"), part("read", B, index=2, id="y")),
    "neither ids nor indexes": calls(part("look", A), part("read", B)),
    "neither, in one chunk": calls([part("look", A), part("read", B)]),
    "null and empty ids": calls(part("look", A, index=0, id=None), part("read", B, index=1, id="")),
    "repeated ids": calls(part("look", A, index=0, id="x"), part("read", B, index=1, id="x")),
    "repeated ids and indexes": calls(
        part("look", A, index=0, id="x"), part("read", B, index=0, id="x")
    ),
    "repeated names and ids": calls(
        part("look", "", index=0, id="x"),
        part("look", '{"a"', index=0, id="x"),
        part("look", ": 1}", index=0, id="x"),
        part("read", "", index=1, id="y"),
        part("read", B, index=1, id="y"),
    ),
    "a new id in each piece": calls(
        part("look", '{"a"', index=0, id="x1"),
        part(None, ": 1}", index=0, id="x2"),
        part("read", B, index=1, id="y1"),
        part(None, "", index=1, id="y2"),
    ),
    "a new id and the name in each piece": calls(
        part("look", '{"a"', index=0, id="x1"),
        part("look", ": 1", index=0, id="x2"),
        part("look", "}", index=0, id="x3"),
        part("read", B, index=1, id="y1"),
    ),
    "a new id and the name in each piece, the first one empty": calls(
        part("look", "", index=0, id="x1"),
        part("look", '{"a"', index=0, id="x2"),
        part("look", ": 1}", index=0, id="x3"),
        part("read", "", index=1, id="y1"),
        part("read", '{"b": ', index=1, id="y2"),
        part("read", "", index=1, id="y3"),
        part("read", '"q"', index=1, id="y4"),
        part("read", "}", index=1, id="y5"),
    ),
    "names in pieces": calls(
        part("lo", None, index=0, id="x"),
        part("ok", None, index=0),
        part(None, A, index=0),
        part("read", B, index=1, id="y"),
    ),
    "names after ids": calls(
        part(None, None, index=0, id="x"),
        part("look", A, index=0),
        part(None, B, index=1, id="y"),
        part("read", None, index=1),
    ),
    "arguments repeated at the end": calls(
        part("look", '{"a"', index=0, id="x"),
        part(None, ": 1}", index=0),
        part("look", A, index=0, id="x"),
        part("read", B, index=1, id="y"),
    ),
    "an empty object first": calls(
        part("look", "{}", index=0, id="x"),
        part(None, A, index=0),
        part("read", {}, index=1, id="y"),
        part(None, B, index=1),
    ),
    "objects": calls(
        part("look", {"a": 1}, index=0, id="x"), part("read", {"b": "q"}, index=1, id="y")
    ),
    "encoded twice": calls(
        part("look", json.dumps(A), index=0, id="x"), part("read", json.dumps(B), index=1, id="y")
    ),
    "spaces around": calls(
        part("look", "\n ", index=0, id="x"),
        part(None, A, index=0),
        part("read", B + "\n", index=1, id="y"),
    ),
    "nulls everywhere": [
        {"choices": None, "usage": None},
        {"choices": []},
        choice(None),
        choice({"role": None, "content": None, "tool_calls": None, "refusal": None}),
        *calls(part("look", A, index=0, id="x"), part("read", B, index=1, id="y")),
        {"usage": {"prompt_tokens": 1, "completion_tokens": 2}},
    ],
    "a message in place of a delta": [
        {"choices": [{"message": {"tool_calls": [part("look", A, id="x"), part("read", B)]}}]},
        choice({}, "stop"),
    ],
    "ended with stop": [
        *calls(part("look", A, index=0, id="x"), part("read", B, index=1, id="y"))[:-1],
        choice({}, "stop"),
    ],
}


@pytest.mark.parametrize("stream", STREAMS)
def test_a_streams_calls_are_told_apart(stream):
    completion = joined(STREAMS[stream])
    (turn,) = read(STREAMS[stream])
    assert [(call.name, call.arguments) for call in completion.tool_calls] == [LOOK, READ]
    assert [(call.name, json.loads(call.arguments)) for call in turn.calls] == [LOOK, READ]
    for made in (completion.tool_calls, turn.calls):
        assert len({call.id for call in made}) == 2
        assert all(call.id for call in made)
    assert completion.finish_reason == turn.finished.reason == "tool_calls"


def test_two_equal_calls_are_two():
    stream = calls(part("look", A, index=0, id="x"), part("look", A, index=0, id="y"))
    assert [call.arguments for call in joined(stream).tool_calls] == [{"a": 1}] * 2
    (turn,) = read(stream)
    assert len(turn.calls) == 2


@pytest.mark.parametrize("arguments", [None, "", " ", "null", "{}", {}])
def test_a_call_without_arguments_is_one(arguments):
    stream = calls(part("look", arguments, index=0, id="x"))
    assert [call.arguments for call in joined(stream).tool_calls] == [{}]
    (turn,) = read(stream)
    assert [call.arguments for call in turn.calls] == ["{}"]


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "7", "a=1", [1], 7, '"a"', '{"a": 1}}'])
def test_arguments_that_are_no_object_reach_the_agent_and_no_client(arguments):
    stream = calls(part("look", arguments, index=0, id="x"))
    (call,) = joined(stream).tool_calls
    assert isinstance(call.arguments, str)
    with pytest.raises(BrokenAnswer, match="'look' whose arguments are no JSON object"):
        read(stream)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
@pytest.mark.parametrize("arguments", ["", '{"a": '])
def test_a_call_that_the_turns_end_cut_off_is_not_made(reason, arguments):
    stream = calls(part("read", B, index=0, id="x"), part("look", arguments, index=1, id="y"))
    stream[-1] = choice({}, reason)
    completion = joined(stream)
    assert [call.name for call in completion.tool_calls] == ["read"]
    assert completion.finish_reason == reason
    (turn,) = read(stream)
    assert [(call.name, call.complete) for call in turn.calls] == [("read", True), ("look", False)]
    assert turn.finished.reason == reason


def test_a_call_without_a_name_is_a_failure_of_the_server():
    stream = calls(part(None, A, index=0, id="x"))
    for reading in (joined, read):
        with pytest.raises(BrokenAnswer, match="without a name"):
            reading(stream)


def test_a_turn_that_promises_calls_and_makes_none_is_malformed():
    stream = [choice({"content": "I look."}), choice({}, "tool_calls")]
    assert joined(stream).finish_reason == "malformed_tool_call"
    (turn,) = read(stream)
    assert (turn.finished.reason, turn.finished.malformed) == ("stop", True)


def test_the_older_form_of_a_call_is_read():
    pieces = [{"name": "look", "arguments": ""}, {"arguments": A}]
    stream = [choice({"function_call": piece}) for piece in pieces]
    stream.append(choice({}, "function_call"))
    (call,) = joined(stream).tool_calls
    assert (call.name, call.arguments) == LOOK
    (turn,) = read(stream)
    assert (turn.calls[0].arguments, turn.finished.reason) == (A, "tool_calls")


TEXT = {"type": "text", "text": "hello"}
CONTENTS = {
    "text": "hello",
    "parts": [TEXT],
    "texts in a list": ["hel", "lo"],
    "one part": TEXT,
    "Mistral": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, TEXT],
    "thoughts": [{"type": "thinking", "thinking": "hm", "signature": "s"}, TEXT],
    "reasoning": [{"type": "reasoning", "text": "hm"}, TEXT],
    "references": [TEXT, {"type": "reference", "reference_ids": [1]}],
    "output": [{"type": "output_text", "text": "hello", "annotations": []}],
}


@pytest.mark.parametrize("content", CONTENTS)
def test_content_in_parts_is_read(content):
    stream = [choice({"content": CONTENTS[content]}), choice({}, "stop")]
    message = {"role": "assistant", "content": CONTENTS[content]}
    whole = wire().completion({"choices": [{"message": message, "finish_reason": "stop"}]})
    (turn,) = read(stream)
    for completion in (joined(stream), whole):
        assert completion.content == turn.text == "hello"
        assert completion.reasoning == (turn.reasoning or None)
    assert turn.reasoning == ("hm" if "hm" in str(CONTENTS[content]) else "")


def test_a_refusal_among_the_parts_is_a_refusal():
    stream = [choice({"content": [{"type": "refusal", "refusal": "No."}]}), choice({}, "stop")]
    assert joined(stream).refusal == read(stream)[0].finished.refusal == "No."


def test_content_of_an_unknown_kind_is_a_failure_of_the_server():
    for reading in (joined, read):
        with pytest.raises(BrokenAnswer, match="content of type 'tool_use'"):
            reading(
                [choice({"content": [{"type": "tool_use", "name": "look"}]}), choice({}, "stop")]
            )


def test_several_choices_stay_apart():
    def of(place, **delta):
        return {"choices": [{"index": place, "delta": delta}]}

    ends = [{"choices": [{"index": n, "delta": {}, "finish_reason": "stop"}]} for n in (1, 0)]
    stream = [of(0, content="a"), of(1, content="x"), of(0, content="b"), of(1, content="y"), *ends]
    assert [turn.text for turn in read(stream, 2)] == ["ab", "xy"]
    assert joined(stream).content == "ab"
    with pytest.raises(BrokenAnswer, match="broke its stream off"):
        read(stream[:-1], 2)


WORDS = {
    "stop": ("end_turn", "eos_token", "COMPLETE", "STOP"),
    "length": (
        [
            "length",
            "max_tokens",
            "MAX_TOKENS",
            "max-tokens",
            "max_output_tokens",
            "max_new_tokens",
            "token_limit",
            "incomplete",
        ]
    ),
    "content_filter": [
        "content_filter",
        "content-filter",
        "sensitive",
        "SAFETY",
        "refusal",
        "ERROR_TOXIC",
    ],
}


@pytest.mark.parametrize(("ours", "theirs"), [(k, w) for k, words in WORDS.items() for w in words])
def test_finish_reasons_of_many_servers_are_known(ours, theirs):
    stream = [choice({"content": "hello"}), choice({}, theirs)]
    assert joined(stream).finish_reason.lower() == ours
    assert read(stream)[0].finished.reason == ours


@pytest.mark.parametrize("theirs", ["model_length", "model_context_window_exceeded"])
def test_a_full_context_is_told_as_one(theirs):
    stream = [choice({"content": "hello"}), choice({}, theirs)]
    assert joined(stream).finish_reason == "context_full"
    assert read(stream)[0].finished.reason == "length"


def done(events):
    """The body of a stream that ends with `[DONE]`."""
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + (
        b"data: [DONE]\n\n"
    )


ONLY_DONE = {
    "text": ([choice({"content": "hello"})], "hello", 0),
    "a call": (calls(part("look", A, index=0, id="x"))[:-1], None, 1),
    "a text and a call": (
        [choice({"content": "hello"}), *calls(part("look", A, index=0, id="x"))[:-1]],
        "hello",
        1,
    ),
}


@pytest.mark.parametrize("stream", ONLY_DONE)
def test_done_after_an_answer_ends_it(stream):
    """Proxies of other dialects send no finish reason, as of Gemini."""
    events, text, count = ONLY_DONE[stream]
    completion = joined(events_in(done(events), wire().done))
    (turn,) = read([*events, wire().done])
    for content, made, reason in (
        (completion.content, completion.tool_calls, completion.finish_reason),
        (turn.text or None, turn.calls, turn.finished.reason),
    ):
        assert (content, len(made)) == (text, count)
        assert reason == ("tool_calls" if count else "stop")


def test_a_stated_reason_counts_before_done():
    events = [choice({"content": "hel"}), choice({}, "length"), wire().done]
    assert joined(events).finish_reason == read(events)[0].finished.reason == "length"


def test_a_finish_reason_may_be_an_object():
    stream = [choice({"content": "hello"}), choice({}, {"type": "length", "length": 2})]
    assert joined(stream).finish_reason == read(stream)[0].finished.reason == "length"


@pytest.mark.parametrize("reason", ["max_output_tokens", "max-tokens", "token_limit"])
def test_no_word_for_a_cut_turn_makes_a_call_with_defaults(reason):
    stream = [*calls(part("look", "", index=0, id="x"))[:-1], choice({}, reason)]
    assert joined(stream).tool_calls == []
    (turn,) = read(stream)
    assert [call.complete for call in turn.calls] == [False]


@pytest.mark.parametrize("end", [{}, {"delta": {}}, {"delta": None}])
def test_a_message_after_the_pieces_repeats_them(end):
    whole = {"role": "assistant", "content": "hello", "reasoning_content": "hm"}
    stream = [
        choice({"reasoning_content": "hm"}),
        choice({"content": "hel"}),
        choice({"content": "lo"}),
        {"choices": [{"index": 0, "message": whole, "finish_reason": "stop", **end}]},
    ]
    assert (joined(stream).content, joined(stream).reasoning) == ("hello", "hm")
    (turn,) = read(stream)
    assert (turn.text, turn.reasoning) == ("hello", "hm")


@pytest.mark.parametrize("fields", [{}, {"id": "x"}, {"id": "other"}, {"index": 0}])
def test_a_message_after_the_pieces_repeats_their_calls(fields):
    pieces = calls(part("look", '{"a"', index=0, id="x"), part(None, ":1}", index=0))[:-1]
    whole = {"role": "assistant", "tool_calls": [part("look", A, **fields)]}
    stream = [*pieces, {"choices": [{"index": 0, "message": whole, "finish_reason": "tool_calls"}]}]
    assert [(call.name, call.arguments) for call in joined(stream).tool_calls] == [LOOK]
    assert len(read(stream)[0].calls) == 1


def test_a_call_in_both_forms_is_one():
    both = {
        "tool_calls": [part("look", A, index=0, id="x")],
        "function_call": {"name": "look", "arguments": A},
    }
    stream = [choice(both), choice({}, "tool_calls")]
    whole = wire().completion({"choices": [{"message": both, "finish_reason": "tool_calls"}]})
    assert (
        len(joined(stream).tool_calls) == len(read(stream)[0].calls) == len(whole.tool_calls) == 1
    )


def test_a_call_without_a_function_around_it_is_read():
    flat = {"index": 0, "id": "x", "name": "look", "arguments": A}
    stream = [choice({"tool_calls": [flat]}), choice({}, "tool_calls")]
    whole = {"choices": [{"message": {"tool_calls": [flat]}, "finish_reason": "tool_calls"}]}
    for completion in (joined(stream), wire().completion(whole)):
        assert [(call.name, call.arguments) for call in completion.tool_calls] == [LOOK]
    assert [call.name for call in read(stream)[0].calls] == ["look"]


def test_a_turn_that_was_cut_off_stays_so():
    stream = [choice({"content": "hel"}), choice({}, "length"), choice({}, "stop")]
    assert joined(stream).finish_reason == read(stream)[0].finished.reason == "length"


def test_messages_in_place_of_deltas_may_be_pieces():
    pieces = [{"choices": [{"message": {"content": text}}]} for text in ("ha", "ha")]
    stream = [*pieces, choice({}, "stop")]
    assert joined(stream).content == read(stream)[0].text == "haha"


FAILURES = {
    "error": [choice({"content": "half"}), choice({}, "error")],
    "abort": [choice({"content": "half"}), choice({}, "abort")],
    "resources": [choice({"content": "half"}), choice({}, "insufficient_system_resource")],
    "network": [choice({"content": "half"}), choice({}, "network_error")],
    "a failure as an object": [choice({"content": "half"}), choice({}, {"type": "abort"})],
    "an end of watsonx": [choice({"content": "half"}), choice({}, "time_limit")],
    "an error in a delta": [
        choice({"content": "half"}),
        choice({"error": "down"}),
        choice({}, "stop"),
    ],
    "an unfinished end": [choice({"content": "half"}, "not_finished")],
    "null as a word": [choice({"content": "half"}, "null")],
    "no end": [choice({"content": "half"})],
    "a null end": [choice({"content": "half"}, None)],
    "only counts": [{"choices": [], "usage": {"prompt_tokens": 1}}],
    "nothing": [],
    "nothing, done": [wire().done],
    "a foreign word for it": [choice({"content": "half"}), {"done": True}],
    "reasoning alone, done": [choice({"reasoning_content": "half"}), wire().done],
    "half a call, done": [*calls(part("look", '{"a"', index=0, id="x"))[:-1], wire().done],
    "a text and half a call, done": [
        choice({"content": "hello"}),
        *calls(part("look", "", index=0, id="x"))[:-1],
        wire().done,
    ],
    "an error beside the choice": [choice({}, "stop", error={"code": 502, "message": "down"})],
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_servers_failure_is_no_answer(failure):
    for reading in (joined, read):
        with pytest.raises((BrokenAnswer, AnsweredError)):
            reading(FAILURES[failure])


@pytest.fixture
def no_waiting(monkeypatch):
    async def sleep(seconds):
        pass

    monkeypatch.setattr(asking, "sleep", sleep)


async def complete(body, stream=False, kind="application/json"):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(_):
        return httpx.Response(200, content=content, headers={"content-type": kind})

    model = OpenAIChatModel(
        "m", base_url="http://server", stream=stream, transport=httpx.MockTransport(answer)
    )
    return await model.complete(HELLO, TOOLS, SamplingParams())


def sse(*events):
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)


BODIES = {
    "empty": b"",
    "a page": b"<html>maintenance</html>",
    "null": b"null",
    "a list": b"[]",
    "no choices": {"choices": []},
    "null choices": {"choices": None},
    "a null choice": {"choices": [None]},
    "no message": {"choices": [{"finish_reason": "stop"}]},
    "a null message": {"choices": [{"message": None, "finish_reason": "stop"}]},
    "a failed turn": {"choices": [{"message": {"content": ""}, "finish_reason": "error"}]},
    "an error of the choice": {
        "choices": [{"message": {"content": ""}, "error": {"code": 502, "message": "down"}}]
    },
    "an error": {"error": {"message": "down", "code": 503}},
    "an error in words": {"error": "down"},
    "an error with empty choices": {"error": {"message": "down", "code": "502"}, "choices": []},
    "an error of vLLM": {"object": "error", "message": "down", "type": "Internal", "code": 500},
    "a call that is text": {"choices": [{"message": {"tool_calls": ["look"]}}]},
    "a call that is null": {"choices": [{"message": {"tool_calls": [None]}}]},
    "a call without a name": {
        "choices": [{"message": {"tool_calls": [part(None, A, id="x")]}, "finish_reason": "stop"}]
    },
    "an error event": sse(choice({"content": "half"}), {"error": {"message": "down", "code": 500}}),
    "an error event in words": sse(choice({"content": "half"}), {"error": "down"}),
    "an event named error": sse(choice({"content": "half"}))
    + b'event: error\ndata: {"message": "down"}\n\ndata: [DONE]\n\n',
    "a status in words": sse({"status": "error", "message": "down"}, choice({}, "stop")),
    "an event named Error": b'event: Error\ndata: {"x": 1}\n\n' + sse(choice({}, "stop")),
    "an event named error in words": sse(choice({"content": "half"}))
    + b"event:error\r\ndata: down\r\n\r\ndata: [DONE]\n\n",
    "the detail of a framework": sse(
        choice({"content": "half"}), {"detail": "Out of memory"}, choice({}, "stop")
    ),
    "a message with a status": sse(
        choice({"content": "half"}), {"message": "down", "code": 500}, choice({}, "stop")
    ),
    "a broken event": b'data: {"choices": [{"del',
    "choices that are a number": sse({"choices": 7}),
    "a delta that is text": sse(choice("half"), choice({}, "stop")),
    "a stream of nothing": b": keep-alive\n\ndata: [DONE]\n\n",
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", BODIES)
async def test_a_response_of_200_that_is_no_answer_is_an_infrastructure_fault(
    body, stream, no_waiting
):
    for kind in ("application/json", "text/event-stream", "text/html"):
        with pytest.raises(InfrastructureFault) as raised:
            await complete(BODIES[body], stream, kind)
        assert "\n" not in str(raised.value)


async def test_an_error_inside_a_200_that_does_not_pass_is_a_refusal(no_waiting):
    for error in (
        {"message": "No such tool.", "code": 400},
        {"message": "No such tool.", "type": "invalid_request_error"},
    ):
        for body in ({"error": error}, sse({"error": error})):
            with pytest.raises(RefusedError, match="No such tool"):
                await complete(body)


async def test_an_overflow_inside_a_200_is_an_overflow(no_waiting):
    message = "the request exceeds the available context size, try increasing it"
    for error in (
        message,
        {"message": message},
        {"message": message, "code": 400, "type": "exceed_context_size_error"},
        {"message": message, "code": 500, "type": "server_error"},
    ):
        for body in ({"error": error}, sse({"error": error})):
            with pytest.raises(ContextOverflow):
                await complete(body)


async def test_a_whole_answer_to_a_stream_and_a_stream_to_a_whole_one_are_read():
    whole = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}
    stream = sse(choice({"content": "hello"}), choice({}, "stop"))
    marked = [b"\xef\xbb\xbf" + body for body in (json.dumps(whole).encode(), stream)]
    for kind in ("application/json", "text/event-stream", "text/plain"):
        for body in (whole, stream, *marked):
            for wanted in (False, True):
                assert (await complete(body, wanted, kind)).content == "hello"


def conversation(*ids):
    talk = list(HELLO)
    for identifier in ids:
        call = {"id": identifier, "type": "function"}
        call["function"] = {"name": "look", "arguments": "{}"}
        talk.append({"role": "assistant", "content": None, "tool_calls": [call]})
        talk.append({"role": "tool", "content": "done", "tool_call_id": identifier})
    return talk


def sent_ids(model, *ids):
    request = GenerationRequest(model=model, messages=conversation(*ids), tools=TOOLS)
    messages = ChatCodec().request(model, request).body["messages"]
    calls = [call["id"] for message in messages for call in message.get("tool_calls") or []]
    results = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert calls == results
    return calls


@pytest.mark.parametrize("model", ["mistral-large-latest", "mistralai/Devstral-Small", "Pixtral"])
def test_mistrals_models_get_ids_of_nine_letters_or_digits(model):
    ids = ["aB3xK9mP2", "call_1234567", "toolu_01.x", "call_1234567", "ü23456789", "123456_89"]
    sent = sent_ids(model, *ids)
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", identifier) for identifier in sent)
    assert sent[0] == ids[0]
    assert len(set(sent)) == len(sent)
    # The same ones in a longer conversation: the provider's prompt cache keeps it.
    assert sent_ids(model, *ids[:3]) == sent[:3]


def test_other_models_get_ids_unchanged():
    assert sent_ids("gpt-6", "call_1234567") == ["call_1234567"]
