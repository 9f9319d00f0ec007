"""How conversations are written for servers, and streams read: properties over all kinds of both."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.agents.servers.anthropic import AnthropicMessages
from tests.agents.servers.gemini import GeminiContent, _canonical
from tests.agents.servers.loopback import PNG
from tests.agents.servers.openai_chat import OpenAIChat
from tests.agents.servers.openai_responses import OpenAIResponses

from hud.inference.dialects.chat_completions.answer import read_answer
from hud.inference.dialects.chat_completions.conversation import documented_messages
from hud.inference.dialects.chat_completions.stream import joined_answer
from hud.inference.dialects.request import GenerationRequest
from hud.inference.dialects.server_sent_events import events_in
from hud.inference.retries import AnsweredError, BrokenAnswer
from hud.inference.tool_names import wire_names
from hud.trace import ToolSpec
from hud_integrations.anthropic.codec import AnthropicCodec
from hud_integrations.gemini.codec import GeminiCodec
from hud_integrations.openai.conversation import input_items


def joined(body):
    return joined_answer(events_in(body))


NAMES = st.text(min_size=1, max_size=90)


@given(st.lists(NAMES, unique=True), st.sets(st.sampled_from(["look", "look_2", "computer"])))
def test_names_on_the_wire_are_plain_short_and_nobody_elses(names, taken):
    wire = wire_names(names, 64, taken)
    assert (list(wire) and set(wire) == set(names)) or not names
    assert len({*wire.values(), *taken}) == len(wire) + len(taken)
    for name, sent in wire.items():
        assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}", sent)
        if re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}", name) and name not in taken:
            assert sent == name


TEXTS = st.text(max_size=20)
ARGUMENTS = st.dictionaries(st.text(max_size=5), st.integers() | TEXTS, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(["look", "go"]), ARGUMENTS), max_size=3)


@st.composite
def turns(draw):
    calls = [
        {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(draw(CALLS))
    ]
    turn = {"content": draw(TEXTS) or None, **({"tool_calls": calls} if calls else {})}
    if draw(st.booleans()):
        turn["reasoning_content"] = draw(TEXTS.filter(bool))
    if draw(st.booleans()):
        turn["finish_reason"] = draw(st.sampled_from(["stop", "length", "content_filter"]))
    return turn


BODY = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.slow
@given(turns(), st.booleans())
def test_a_streamed_answer_is_the_answer_that_comes_whole(turn, windows):
    server = OpenAIChat()
    stream = b"".join(server.events(turn, BODY))
    if windows:
        stream = stream.replace(b"\n", b"\r\n")
    whole = read_answer(server.whole(turn, BODY), "m", None)
    streamed = read_answer(joined(stream), "m", None)
    streamed.content = streamed.content or None
    assert streamed == whole


@pytest.mark.slow
@given(turns(), st.data())
def test_a_stream_that_is_cut_anywhere_is_never_half_an_answer(turn, data):
    stream = b"".join(OpenAIChat().events(turn, BODY))
    cut = data.draw(st.integers(0, len(stream) - 1))
    try:
        found = read_answer(joined(stream[:cut]), "m", None)
    except BrokenAnswer:
        return
    complete = read_answer(joined(stream), "m", None)
    assert (found.content, found.tool_calls) == (complete.content, complete.tool_calls)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_stream_are_a_broken_answer(noise):
    with pytest.raises((BrokenAnswer, AnsweredError)):
        joined(b"data: " + noise)


@st.composite
def conversations(draw):
    """A conversation as the tool loop writes it, with calls of any names and answers of all shapes."""
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    words = st.text("abc ", min_size=1, max_size=9)
    parts = st.lists(
        st.just(picture) | words.map(lambda text: {"type": "text", "text": text}), min_size=1
    )
    messages = [{"role": "system", "content": "Be brief."}] if draw(st.booleans()) else []
    messages.append({"role": "user", "content": draw(words)})
    number = 0
    for _ in range(draw(st.integers(0, 3))):
        names = draw(st.lists(st.sampled_from(["look", "files.read", "搜索"]), max_size=3))
        calls = []
        for name in names:
            number += 1
            call = {"name": name, "arguments": "{}"}
            calls.append({"id": f"c{number}", "type": "function", "function": call})
        turn = {"role": "assistant", "content": draw(words)}
        messages.append({**turn, **({"tool_calls": calls} if calls else {})})
        for call in calls:
            content = draw(words | parts)
            answer = {"role": "tool", "tool_call_id": call["id"], "content": content}
            messages.append({**answer, **({"is_error": True} if draw(st.booleans()) else {})})
        if not calls or draw(st.booleans()):
            messages.append({"role": "user", "content": draw(words)})
    return messages


WIRE = wire_names(["look", "files.read", "搜索"], 64)


def pictures_in(value):
    return json.dumps(value).count(PNG)


@given(conversations())
def test_every_conversation_is_one_that_chat_completions_document(messages):
    written = documented_messages(messages, WIRE)
    OpenAIChat()._check_messages(written)
    assert pictures_in(written) == pictures_in(messages)


@pytest.mark.slow
@given(conversations())
def test_every_conversation_of_another_dialect_is_one_that_responses_document(messages):
    items = input_items(messages, WIRE)
    OpenAIResponses()._check_items(items, set(), stored=False)
    assert pictures_in(items) == pictures_in(messages)


NAMED = [ToolSpec(name=name) for name in ("look", "files.read", "搜索")]


def request_of(messages):
    return GenerationRequest(model="some-model", messages=messages, tools=NAMED)


@pytest.mark.slow
@given(conversations())
def test_every_conversation_is_one_that_anthropic_documents(messages):
    assume(all(str(message["content"]).strip() for message in messages))
    wire = AnthropicCodec().request("some-model", request_of(messages))
    AnthropicMessages()._check_messages(wire.body, set(WIRE.values()))
    assert pictures_in(wire.body) == pictures_in(messages)


@pytest.mark.slow
@given(conversations())
def test_every_conversation_is_one_that_gemini_documents(messages):
    wire = GeminiCodec().request("gemini-3-pro-preview", request_of(messages))
    contents, names = wire.body["contents"], set(WIRE.values())
    server = GeminiContent()
    # Calls of another model, which Gemini takes with a signature that it documents for them.
    server.given = [_canonical(part) for content in contents for part in content["parts"]]
    server._check_contents(contents, names, set(), "gemini-3-pro-preview")
    assert pictures_in(contents) == pictures_in(messages)
