"""Codecs of providers' dialects: the halves that agents and the gateway use agree."""

from __future__ import annotations

import json

import pytest
from tests.agents.servers import anthropic, gemini, openai_chat

from hud.errors import UsageError
from hud.inference.dialects.chat_completions.codec import ChatCodec
from hud.inference.dialects.events import reason_of, turns_of
from hud.inference.dialects.request import GenerationRequest, ToolChoice
from hud.inference.dialects.server_sent_events import events_in
from hud.trace import ToolSpec
from hud_integrations.anthropic.codec import AnthropicCodec
from hud_integrations.gemini.codec import GeminiCodec

HELLO = [{"role": "user", "content": "hello"}]
WIDE = ToolSpec(name="doors.open wide", description="Opens doors.")
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "doors_open_wide", "arguments": '{"at": 7}'},
}
SPOKEN = {
    "anthropic": (
        AnthropicCodec(),
        anthropic.AnthropicMessages(),
        [
            anthropic.think("hm", "s"),
            anthropic.say("Wait."),
            anthropic.call("doors_open_wide", "t1", at=7),
        ],
    ),
    "gemini": (
        GeminiCodec(),
        gemini.GeminiContent(),
        [gemini.think("hm"), gemini.say("Wait."), gemini.call("doors_open_wide", "f1", at=7)],
    ),
    "chat completions": (
        ChatCodec(),
        openai_chat.OpenAIChat(),
        {"content": "Wait.", "reasoning_content": "hm", "tool_calls": [CALL]},
    ),
}


def asked(codec, **fields):
    fields = {"messages": HELLO, "tools": [WIDE], "stream": True, **fields}
    return codec.request("some-model", GenerationRequest(model="some-model", **fields))


@pytest.mark.parametrize("dialect", SPOKEN)
def test_a_stream_reads_the_same_while_it_comes_and_when_it_is_joined(dialect):
    codec, server, spoken = SPOKEN[dialect]
    wire = asked(codec)
    items = events_in(b"".join(server.events(spoken, wire.body)))
    completion = wire.completion(wire.joined(items))
    reader = wire.reader()
    events = [event for item in items for event in reader.read(item)]
    (turn,) = turns_of([*events, *reader.end()], 1)
    (whole,), (call,) = completion.tool_calls, turn.calls
    assert (
        (turn.text, turn.reasoning) == (completion.content, completion.reasoning) == ("Wait.", "hm")
    )
    assert (call.name, json.loads(call.arguments)) == (whole.name, whole.arguments)
    assert (whole.name, whole.arguments) == (WIDE.name, {"at": 7})
    assert turn.finished.reason == reason_of(completion.finish_reason) == "tool_calls"
    counts = [
        (one.prompt_tokens, one.completion_tokens, one.cached_tokens)
        for one in (reader.usage, completion.usage)
    ]
    assert counts[0] == counts[1]
    assert counts[0][0] > 0


LONG = 12345678901234567890123
LONG_CALLS = {
    "anthropic": [anthropic.call("doors_open_wide", "t1", at=LONG)],
    "gemini": [gemini.call("doors_open_wide", "f1", at=LONG)],
    "chat completions": {
        "content": None,
        "tool_calls": [
            {**CALL, "function": {**CALL["function"], "arguments": f'{{"at": {LONG}}}'}}
        ],
    },
}


@pytest.mark.parametrize("dialect", SPOKEN)
def test_an_integer_beyond_64_bits_keeps_its_digits(dialect):
    codec, server, _ = SPOKEN[dialect]
    wire = asked(codec)
    items = events_in(b"".join(server.events(LONG_CALLS[dialect], wire.body)))
    (called,) = wire.completion(wire.joined(items)).tool_calls
    reader = wire.reader()
    events = [event for item in items for event in reader.read(item)]
    (turn,) = turns_of([*events, *reader.end()], 1)
    assert called.arguments == json.loads(turn.calls[0].arguments) == {"at": LONG}
    spoken = {"role": "assistant", "content": None, "tool_calls": [called.message()]}
    answered = {"role": "tool", "tool_call_id": called.id, "content": str(LONG)}
    assert str(LONG) in json.dumps(asked(codec, messages=[*HELLO, spoken, answered]).body)


@pytest.mark.parametrize("dialect", SPOKEN)
def test_a_tool_that_must_be_called_is_named_as_on_the_wire(dialect):
    codec, _, _ = SPOKEN[dialect]
    wire = asked(codec, tool_choice=ToolChoice("required", (WIDE.name,)))
    chosen = wire.body.get("toolConfig") or wire.body["tool_choice"]
    assert "doors_open_wide" in json.dumps(chosen)
    assert WIDE.name not in json.dumps(wire.body["tools"])


@pytest.mark.parametrize("codec", [AnthropicCodec(), GeminiCodec()])
def test_an_answer_to_no_call_is_refused(codec):
    messages = [*HELLO, {"role": "tool", "tool_call_id": "c9", "content": "seven"}]
    with pytest.raises(UsageError, match="has the id 'c9'"):
        asked(codec, messages=messages)
