"""What can be asked of the gateway, what it refuses, and how it says so."""

import asyncio
import json
import socket
import time

import anthropic
import httpx
import openai
import pytest
import sqlalchemy as sa
from google import genai
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.platform.gateway.gateway_server import ScriptedEngine

from hud.engine.chat.tool_calls.format import parse_output
from hud.errors import OverloadedError
from hud.inference.served_model import OpenAIChatModel
from hud.trace import SamplingParams, ToolSpec
from hud_platform.gateway.chat_formats import format_of
from hud_platform.serving.token_engine import EngineDownError
from hud_platform.store import tables

HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}},
        },
    }
]
LOOK = [ToolSpec(name="look", description="", parameters={"type": "object"})]
CALL = '<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>'
RED = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture
def say(app):
    """Have the engine draw texts."""
    tokenizer = format_of(app.state.parts.registry.model("tiny").folder).chat.tokenizer

    def say(*texts, **options):
        engine = ScriptedEngine(tokenizer, *texts, **options)
        app.state.parts.__dict__["engine"] = engine
        return engine

    return say


@pytest.fixture
def real(app):
    """Have the engine draw from the model."""
    app.state.parts.__dict__.pop("engine", None)


@pytest.fixture
def ask(url):
    def ask(path="/chat/completions", **body):
        body = {"model": "tiny", "messages": HELLO, **body}
        return httpx.post(url + path, json=body, timeout=30)

    return ask


def chunks(answer):
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


# -- tokens -------------------------------------------------------------------------------------------


def test_ids_and_logprobs_stand_inside_the_choice(ask, say):
    engine = say("a word" + CALL)
    choice = ask(return_token_ids=True, logprobs=True, tools=TOOLS).json()["choices"][0]
    assert choice["prompt_token_ids"] == engine.asked[0][2].prompt
    assert choice["token_ids"] == engine.turns[0]  # The token that ended the turn included.
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-0.5] * len(
        engine.turns[0]
    )
    assert choice["checkpoint"] == "c" * 32
    assert choice["finish_reason"] == "tool_calls"


def test_a_stream_ends_with_the_ids(ask, say):
    engine = say("some more words", pieces=2)
    told = chunks(ask(return_token_ids=True, logprobs=True, stream=True))
    last = told[-1]["choices"][0]
    assert last["finish_reason"] == "stop"
    assert last["token_ids"] == engine.turns[0]
    assert last["prompt_token_ids"] == engine.asked[0][2].prompt
    tokens = [
        entry
        for chunk in told
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert len(tokens) == len(engine.turns[0])
    assert not any("token_ids" in chunk["choices"][0] for chunk in told[:-1])


def test_top_logprobs_come_with_text_and_bytes(ask, say):
    say("apples")
    content = ask(logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]) == b"apples<|end|>"
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * len(content)
    assert ask(top_logprobs=2).status_code == 400


def test_a_continuation_extends_exact_ids_and_does_not_count_the_system_message(ask, say):
    engine = say("first", "second")
    system = {"role": "system", "content": "Be brief."}
    first = ask(messages=[system, *HELLO], return_token_ids=True).json()["choices"][0]
    covered = first["prompt_token_ids"] + first["token_ids"]
    # What the client says the model wrote is not what it wrote: the ids count.
    messages = [system, *HELLO, {"role": "assistant", "content": "FIRST"}]
    messages.append({"role": "user", "content": "more"})
    more = {"prompt_token_ids": covered, "continuation_from": 2, "return_token_ids": True}
    second = ask(messages=messages, **more).json()["choices"][0]
    assert second["prompt_token_ids"][: len(covered)] == covered
    added = engine.tokenizer.decode(second["prompt_token_ids"][len(covered) :], False)
    assert added == "<|user|>more<|end|><|assistant|>"


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_token_ids": [1, 2]},
        {"continuation_from": 1},
        {"prompt_token_ids": [10**6], "continuation_from": 1},
        {"prompt_token_ids": [-1], "continuation_from": 1},
        {"prompt_token_ids": "1", "continuation_from": 1},
    ],
)
def test_ids_that_cannot_be_gone_on_from_are_refused(ask, say, fields):
    say("x")
    answer = ask(**fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["detail"]


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 5}])
def test_a_distribution_that_is_cut_gives_no_ids_to_train_on(ask, say, cut):
    say("x")
    assert "token_ids" not in ask(return_token_ids=True, **cut).json()["choices"][0]


# -- how turns end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pieces", [1, 2, 50])
def test_a_stop_string_ends_the_turn_where_it_is_complete(ask, say, stream, pieces):
    engine = say("one two three four", pieces=pieces)
    asked = {"stop": ["o thr", "never"], "return_token_ids": True}
    if stream:
        told = chunks(ask(stream=True, **asked))
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in told)
        choice = told[-1]["choices"][0]
    else:
        choice = ask(**asked).json()["choices"][0]
        text = choice["message"]["content"]
    assert text == "one tw"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "o thr")
    drawn = engine.tokenizer.decode(choice["token_ids"], False)
    assert "o thr" in drawn
    assert "o thr" not in engine.tokenizer.decode(choice["token_ids"][:-1], False)
    assert engine.closed == 1


def test_anthropic_names_the_stop_sequence(ask, say):
    say("one two three")
    answer = ask("/v1/messages", max_tokens=50, stop_sequences=[" three"]).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", " three")
    assert answer["content"][0]["text"] == "one two"


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_where_calls_may_not_be_parallel(ask, say, stream):
    say("a" + CALL + CALL + "b")
    asked = {"tools": TOOLS, "parallel_tool_calls": False, "return_token_ids": True}
    if stream:
        told = chunks(ask(stream=True, **asked))
        begun = [
            call
            for chunk in told
            for call in chunk["choices"][0]["delta"].get("tool_calls") or []
            if call.get("id")
        ]
        assert len(begun) == 1
        assert told[-1]["choices"][0]["finish_reason"] == "tool_calls"
        return
    choice = ask(**asked).json()["choices"][0]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["message"]["content"] == "a"
    assert len(ask(tools=TOOLS).json()["choices"][0]["message"]["tool_calls"]) == 2


def test_tools_that_are_not_to_be_called_are_neither_shown_nor_read(ask, say):
    engine = say("a" + CALL)
    message = ask(tools=TOOLS, tool_choice="none").json()["choices"][0]["message"]
    assert (message["content"], "tool_calls" in message) == ("a" + CALL, False)
    assert "look(" not in engine.tokenizer.decode(engine.asked[0][2].prompt, False)


def test_a_call_that_cannot_be_read_is_told_as_such(ask, say, url):
    say("a<tool_call>{broken</tool_call>")
    choice = ask(tools=TOOLS).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "malformed_tool_call")

    async def complete():
        model = OpenAIChatModel("tiny", base_url=url)
        done = await model.complete(HELLO, [], SamplingParams())
        await model.aclose()
        return done

    assert asyncio.run(complete()).finish_reason == "malformed_tool_call"


@pytest.mark.slow
def test_a_turn_is_cut_at_its_length(ask, say):
    say("one two three four five six")
    choice = ask(max_tokens=2).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert ask("/v1/messages", max_tokens=2).json()["stop_reason"] == "max_tokens"
    answer = ask("/responses", input="x", max_output_tokens=2).json()
    assert (answer["status"], answer["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    body = {"contents": "x", "generationConfig": {"maxOutputTokens": 2}}
    answer = ask("/v1beta/models/tiny:generateContent", **body).json()
    assert answer["candidates"][0]["finishReason"] == "MAX_TOKENS"


# -- with the model itself ------------------------------------------------------------------------------


@pytest.mark.slow
def test_several_choices_are_drawn_apart_and_told_apart(ask, real):
    asked = {"n": 4, "max_tokens": 12, "seed": 3, "return_token_ids": True}
    whole = ask(**asked).json()["choices"]
    assert [choice["index"] for choice in whole] == [0, 1, 2, 3]
    assert len({tuple(choice["token_ids"]) for choice in whole}) == 4
    told = chunks(ask(stream=True, **asked))
    for place, choice in enumerate(whole):
        own = [one for chunk in told for one in chunk["choices"] if one["index"] == place]
        assert own[-1]["token_ids"] == choice["token_ids"]
        text = "".join(one["delta"].get("content") or "" for one in own)
        if "</think>" not in text:  # Nothing opened it.
            assert (text or None) == choice["message"]["content"]


@pytest.mark.slow
def test_streamed_and_whole_answers_of_a_model_are_the_same(ask, real, app):
    chat = format_of(app.state.parts.registry.model("tiny").folder).chat
    for seed in range(8):
        asked = {"max_tokens": 40, "seed": seed, "return_token_ids": True, "tools": TOOLS}
        choice = ask(**asked).json()["choices"][0]
        parsed = parse_output(chat.decode(choice["token_ids"]), chat.tool_format, LOOK)
        assert choice["message"]["content"] == parsed.content
        told = chunks(ask(stream=True, **asked))
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in told)
        assert told[-1]["choices"][0]["token_ids"] == choice["token_ids"]
        if "</think>" not in text:  # Nothing opened it.
            assert (text or None) == parsed.content


@pytest.mark.slow
def test_completions_go_on_from_text_or_ids(ask, real):
    answer = ask("/completions", prompt=["look at", [5, 6, 7]], max_tokens=3, n=2, logprobs=1)
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert all(len(choice["logprobs"]["tokens"]) <= 3 for choice in choices)
    streamed = ask("/v1/completions", prompt="look at", max_tokens=3, seed=1, stream=True)
    whole = ask("/v1/completions", prompt="look at", max_tokens=3, seed=1).json()
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks(streamed))
    assert text == whole["choices"][0]["text"]
    assert ask("/completions", prompt=[[10**7]]).status_code == 400


@pytest.mark.slow
def test_a_model_is_found_by_slug_id_and_name_and_pinned_to_a_checkpoint(ask, app, real):
    record = app.state.parts.registry.model("tiny")
    for name in ("tiny", record.id, record.name, "tiny@head", "tiny@base"):
        answer = ask(model=name, max_tokens=1)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "tiny"
    assert ask(checkpoint="base", max_tokens=1).status_code == 200
    for missing in ({"model": "tiny@nope"}, {"checkpoint": "nope"}):
        answer = ask(max_tokens=1, **missing)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


def test_a_prompt_beyond_the_context_is_refused(ask, real):
    answer = ask(messages=[{"role": "user", "content": "apples " * 600}])
    assert answer.status_code == 400
    assert "context" in answer.json()["detail"]


# -- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": "hello"},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"n": 0},
        {"n": 1000},
        {"max_tokens": 0},
        {"temperature": 3},
        {"temperature": "hot"},
        {"logit_bias": {"5": 100}},
        {"presence_penalty": 1.0},
        {"tools": [{"type": "web_search"}]},
        {"tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tools": TOOLS, "tool_choice": "sometimes"},
        {"response_format": {"type": "xml"}},
        {"stop": [1]},
        {"seed": -1},
        {"modalities": ["audio"]},
    ],
)
def test_what_cannot_be_honoured_is_refused_with_a_sentence(ask, say, fields):
    say("x")
    answer = ask(**fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert error["error"]["type"] == "invalid_request_error"
    assert error["detail"] == error["error"]["message"]
    assert len(error["detail"]) > 20


@pytest.mark.slow
def test_images_are_refused_where_the_model_sees_none(ask, say):
    say("x")
    image = {"type": "image_url", "image_url": {"url": RED}}
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    inline = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}
    for answer in (
        ask(messages=[{"role": "user", "content": [image]}]),
        ask(
            "/responses",
            input=[{"role": "user", "content": [{"type": "input_image", "image_url": RED}]}],
        ),
        ask(
            "/v1/messages",
            max_tokens=5,
            messages=[{"role": "user", "content": [{"type": "image", "source": source}]}],
        ),
        ask("/v1beta/models/tiny:generateContent", contents=[{"role": "user", "parts": [inline]}]),
    ):
        assert answer.status_code == 400, answer.text
        assert "image" in answer.json()["detail"]


@pytest.mark.slow
def test_official_clients_raise_their_own_errors(url, say):
    say("x")
    chat = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="no model 'nope'"):
        chat.chat.completions.create(model="nope", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat.chat.completions.create(model="tiny", messages=HELLO, temperature=9)
    claude = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
    with pytest.raises(anthropic.NotFoundError, match="no model 'nope'"):
        claude.messages.create(model="nope", max_tokens=5, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.messages.create(model="tiny", max_tokens=-1, messages=HELLO)
    gemini = genai.Client(api_key="k", http_options={"base_url": url})
    with pytest.raises(genai.errors.ClientError, match="no model 'nope'") as caught:
        gemini.models.generate_content(model="nope", contents="x")
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "status"),
    [(OverloadedError("Full.", retry_after=3.2), 429), (EngineDownError("Down."), 503)],
)
def test_a_busy_or_broken_engine_says_when_to_come_back(ask, url, app, say, error, status):
    class Busy:
        async def stream(self, *_):
            raise error
            yield

    app.state.parts.__dict__["engine"] = Busy()
    for path in ("/chat/completions", "/v1/messages", "/responses"):
        for stream in (False, True):
            answer = ask(path, max_tokens=5, input="x", stream=stream)
            assert answer.status_code == status
            assert answer.headers["retry-after"] == ("4" if status == 429 else "2")
    chat = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    wanted = openai.RateLimitError if status == 429 else openai.InternalServerError
    with pytest.raises(wanted):
        chat.chat.completions.create(model="tiny", messages=HELLO)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "sign"),
    [
        ("/chat/completions", '"error"'),
        ("/v1/messages", "event: error"),
        ("/responses", "response.failed"),
        ("/v1beta/models/tiny:streamGenerateContent?alt=sse", '"error"'),
    ],
)
def test_a_stream_that_breaks_says_so_in_its_dialect(ask, say, path, sign):
    async def fail():
        raise EngineDownError("The engine is being started again.")

    say("some words", then=fail)
    contents = [{"parts": [{"text": "x"}]}]
    answer = ask(path, max_tokens=50, input="x", contents=contents, stream=True)
    assert answer.status_code == 200
    assert sign in answer.text
    assert "started again" in answer.text


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = [
    "messages", "tools", "tool_choice", "stop", "n", "max_tokens", "input", "system", "contents",
    "generationConfig", "toolConfig", "systemInstruction", "response_format", "text", "thinking",
    "stream_options", "prompt", "logprobs", "previous_response_id", "reasoning", "stop_sequences",
    "prompt_token_ids", "continuation_from", "seed", "temperature", "metadata", "include",
]  # fmt: skip
BODIES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(FIELDS, JSON),
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "assistant", "system", "tool"])},
                optional={"content": JSON, "tool_calls": JSON, "tool_call_id": JSON},
            ),
            max_size=3,
        )
        | JSON,
    },
)
PATHS = [
    "/chat/completions",
    "/completions",
    "/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1beta/models/tiny:generateContent",
    "/v1beta/models/tiny:countTokens",
]


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(body=BODIES)
def test_no_body_brings_the_gateway_down(url, say, path, body):
    say("x")
    answer = httpx.post(url + path, json={"model": "tiny", **body})
    assert answer.status_code < 500, (body, answer.text)
    assert isinstance(answer.json(), dict)


@pytest.mark.parametrize("arguments", ["[" * 50_000, "[" * 1_020 + "1" * 25 + "]" * 1_020])
def test_arguments_that_are_nested_too_deep_fail_no_request(ask, say, arguments):
    say("x")
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]
    assert ask("/chat/completions", messages=messages).status_code in (200, 400)


@pytest.mark.slow
def test_bodies_that_are_no_json_objects_are_refused(url):
    for content in (b"", b"{", b"[]", b'"x"', b"\xff"):
        answer = httpx.post(url + "/chat/completions", content=content)
        assert answer.status_code == 400
        assert answer.json()["detail"]


# -- who goes away, and what is written down --------------------------------------------------------------


def test_a_client_that_goes_away_frees_its_sequence(app, url, say):
    waiting = asyncio.Event()

    async def forever():
        await waiting.wait()

    for stream in (True, False):
        engine = say("some words", then=forever)
        body = json.dumps({"model": "tiny", "messages": HELLO, "stream": stream}).encode()
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(
                b"POST /chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
                % len(body)
                + body
            )
            until(lambda engine=engine: engine.asked)
            time.sleep(0.05)
            assert engine.closed == 0
        until(lambda engine=engine: engine.closed == 1)


@pytest.mark.slow
def test_requests_are_written_down_with_their_traces(app, url, say):
    say("three words here")
    trace = "ab" * 16
    dashed = f"{trace[:8]}-{trace[8:12]}-{trace[12:16]}-{trace[16:20]}-{trace[20:]}"
    for identifier in (trace, dashed):
        body = {"model": "tiny", "messages": HELLO}
        headers = {"Trace-Id": identifier}
        answer = httpx.post(url + "/chat/completions", json=body, headers=headers).json()
    table = tables.requests

    def rows():
        with app.state.parts.store.read() as connection:
            found = connection.execute(sa.select(table).where(table.c.trace_id == trace))
            return found.all()

    until(lambda: len(rows()) == 2)
    for row in rows():
        assert (row.route, row.model, row.status) == ("chat/completions", "tiny", 200)
        assert row.prompt_tokens == answer["usage"]["prompt_tokens"]
        assert row.completion_tokens == answer["usage"]["completion_tokens"]
        assert row.checkpoint == "c" * 32
        assert row.seconds > 0


def until(true, seconds=10):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "It never came."
        time.sleep(0.02)
