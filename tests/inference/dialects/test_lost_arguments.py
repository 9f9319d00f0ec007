"""Arguments, calls and texts at another place than the dialect's are read or refused: no tool runs with its defaults instead."""

from __future__ import annotations

import copy

import pytest

from hud.inference.dialects.chat_completions.codec import ChatCodec
from hud.inference.dialects.events import turns_of
from hud.inference.dialects.request import GenerationRequest
from hud.inference.retries import BrokenAnswer
from hud.trace import ToolSpec
from hud_integrations.anthropic.codec import AnthropicCodec
from hud_integrations.gemini.codec import GeminiCodec
from hud_integrations.openai.codec import ResponsesCodec

CODECS = {
    "chat": ChatCodec(),
    "anthropic": AnthropicCodec(),
    "gemini": GeminiCodec(),
    "responses": ResponsesCodec(),
}
FIELDS = ("arguments", "input", "args", "parameters")
LOOK = ToolSpec(name="look", description="")


def wire(dialect):
    messages = [{"role": "user", "content": "hello"}]
    request = GenerationRequest(model="m", messages=messages, tools=[LOOK], stream=True)
    return CODECS[dialect].request("m", request)


def answer(dialect, call):
    """A whole answer with one call, whose fields besides name and id are `call`."""
    named = {"name": "look", **call}
    if dialect == "chat":
        message = {"tool_calls": [{"id": "x", "type": "function", "function": named}]}
        return {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    if dialect == "anthropic":
        block = {"type": "tool_use", "id": "x", **named}
        return {"type": "message", "content": [block], "stop_reason": "tool_use"}
    if dialect == "gemini":
        parts = [{"functionCall": named}]
        return {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
    item = {"type": "function_call", "call_id": "x", **named}
    return {"status": "completed", "output": [item]}


def completed(dialect, body):
    return wire(dialect).completion(copy.deepcopy(body))


def streamed(dialect, events):
    reader = wire(dialect).reader()
    written = [event for item in events for event in reader.read(copy.deepcopy(item))]
    return turns_of([*written, *reader.end()], 1)[0]


def joined(dialect, events):
    request = wire(dialect)
    return request.completion(request.joined(copy.deepcopy(events)))


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [{"a": 1}, '{"a": 1}'])
@pytest.mark.parametrize("dialect", CODECS)
def test_arguments_in_another_dialects_field_are_read(dialect, value, name):
    call = completed(dialect, answer(dialect, {name: value})).tool_calls[0]
    assert call.arguments == {"a": 1}


@pytest.mark.parametrize("name", FIELDS)
def test_streamed_arguments_in_another_dialects_field_are_read(name):
    function = {"name": "look", name: {"a": 1}}
    chunks = [
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "x", "function": function}]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    ]
    assert joined("chat", chunks).tool_calls[0].arguments == {"a": 1}
    assert streamed("chat", chunks).calls[0].arguments == '{"a":1}'
    block = {"type": "tool_use", "id": "x", "name": "look", name: {"a": 1}}
    events = [*anthropic_block(block), ENDED, {"type": "message_stop"}]
    assert joined("anthropic", events).tool_calls[0].arguments == {"a": 1}
    assert streamed("anthropic", events).calls[0].arguments == '{"a":1}'
    chunk = answer("gemini", {name: {"a": 1}})
    assert streamed("gemini", [chunk]).calls[0].arguments == '{"a":1}'


ENDED = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}


def anthropic_block(block, *pieces):
    begun = {"type": "content_block_start", "index": 0, "content_block": block}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    changes = [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    return [begun, *changes, {"type": "content_block_stop", "index": 0}]


def test_blocks_of_one_index_are_several():
    uses = [
        {"type": "tool_use", "id": "x", "name": "look", "input": {}},
        {"type": "tool_use", "id": "y", "name": "read", "input": {}},
    ]
    blocks = [*anthropic_block(uses[0], '{"a": 1}'), *anthropic_block(uses[1], '{"b": 2}')]
    events = [*blocks, ENDED, {"type": "message_stop"}]
    calls = joined("anthropic", events).tool_calls
    assert [(call.name, call.arguments) for call in calls] == [
        ("look", {"a": 1}),
        ("read", {"b": 2}),
    ]
    assert [call.name for call in streamed("anthropic", events).calls] == ["look", "read"]


@pytest.mark.parametrize("reason", ["error", "overloaded", "cancelled"])
def test_a_stop_reason_that_names_a_failure_is_no_answer(reason):
    text = {"type": "text", "text": "half"}
    with pytest.raises(BrokenAnswer, match=reason):
        completed("anthropic", {"type": "message", "content": [text], "stop_reason": reason})
    ended = {"type": "message_delta", "delta": {"stop_reason": reason}}
    with pytest.raises(BrokenAnswer, match=reason):
        streamed("anthropic", [ended])


@pytest.mark.parametrize("reason", ["max-tokens", "MAX_TOKENS", "length", "max_output_tokens"])
def test_a_call_is_cut_off_whatever_the_word_for_it(reason):
    block = {"type": "tool_use", "id": "x", "name": "look", "input": {}}
    body = {"type": "message", "content": [block], "stop_reason": reason}
    completion = completed("anthropic", body)
    assert (completion.tool_calls, completion.finish_reason) == ([], "length")
    ended = {"type": "message_delta", "delta": {"stop_reason": reason}}
    turn = streamed("anthropic", [*anthropic_block(block), ended, {"type": "message_stop"}])
    assert [call.complete for call in turn.calls] == [False]


def test_a_turn_that_is_not_finished_is_no_answer():
    text = {"type": "text", "text": "half"}
    with pytest.raises(BrokenAnswer):
        completed(
            "anthropic", {"type": "message", "content": [text], "stop_reason": "not_finished"}
        )
    with pytest.raises(BrokenAnswer):
        streamed("anthropic", [{"type": "message_delta", "delta": {"stop_reason": "not_finished"}}])


@pytest.mark.parametrize("piece", [{"willContinue": True}, {"partialArgs": [{"jsonPath": "$.a"}]}])
def test_part_of_a_function_call_is_no_call(piece):
    with pytest.raises(BrokenAnswer, match="part of a function call"):
        completed("gemini", answer("gemini", piece))
    with pytest.raises(BrokenAnswer, match="part of a function call"):
        streamed("gemini", [answer("gemini", piece)])


CALL = {"type": "function_call", "call_id": "x", "name": "look", "arguments": ""}


@pytest.mark.parametrize("last", ["done", "added"])
@pytest.mark.parametrize("piece", ["delta", "done"])
def test_streamed_arguments_of_a_response_complete_its_items(last, piece):
    text = {"arguments" if piece == "done" else "delta": '{"a": 1}'}
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": CALL},
        {"type": f"response.function_call_arguments.{piece}", "output_index": 0, **text},
        {"type": f"response.output_item.{last}", "output_index": 0, "item": CALL},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    ]
    assert joined("responses", events).tool_calls[0].arguments == {"a": 1}


def test_streamed_text_of_a_response_completes_its_items():
    message = {"type": "message", "role": "assistant", "content": []}
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": message},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "he"},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "llo"},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    ]
    assert joined("responses", events).content == "hello"


@pytest.mark.parametrize("part", [{"type": "text", "text": "hello"}, {"type": "output_text"}])
def test_text_parts_of_a_response_are_read(part):
    content = [part, {"type": "output_text", "text": None}]
    body = {"status": "completed", "output": [{"type": "message", "content": content}]}
    assert completed("responses", body).content == part.get("text")


def test_a_message_in_the_last_chunk_is_read():
    function = {"name": "look", "arguments": '{"a": 1}'}
    message = {"tool_calls": [{"id": "x", "function": function}]}
    chunk = {"choices": [{"delta": {}, "message": message, "finish_reason": "tool_calls"}]}
    assert joined("chat", [chunk]).tool_calls[0].arguments == {"a": 1}


@pytest.mark.parametrize("text", ['""', '" "', '"null"'])
def test_an_encoded_empty_text_is_no_arguments(text):
    assert completed("chat", answer("chat", {"arguments": text})).tool_calls[0].arguments == {}
