"""Settings and endpoints of providers' APIs: honoured, or refused with a sentence, never taken and ignored."""

import json
import re

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import errors, types
from tests.platform.gateway.gateway_server import ScriptedEngine, serving

from hud_platform.gateway.chat_formats import format_of

HELLO = [{"role": "user", "content": "hello"}]
CONTENTS = [{"parts": [{"text": "hello"}]}]


@pytest.fixture(scope="module")
def url(app):
    with serving(app) as url:
        config = {"url": "http://127.0.0.1:9", "dialect": "openai", "upstream_model": "m"}
        body = {"name": "elsewhere", "provider": config}
        assert httpx.post(url + "/v2/models/provide", json=body, timeout=30).status_code == 200
        yield url


@pytest.fixture
def engine(app):
    """An engine that draws one text."""
    tokenizer = format_of(app.state.parts.registry.model("tiny").folder).chat.tokenizer
    app.state.parts.__dict__["engine"] = engine = ScriptedEngine(tokenizer, " apples.")
    return engine


def post(url, path, body):
    return httpx.post(url + path, json=body, timeout=60)


IGNORED = {
    "/v1/chat/completions": [
        {"verbosity": "low"},
        {"prediction": {"type": "content", "content": "x"}},
        {"modalities": ["text", "audio"]},
        {"repetition_penalty": 1.1},
        {"min_p": 0.1},
        {"logit_bias": {"5": -100}},
        {"guided_regex": "a+"},
        {"stop_token_ids": [7]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"reasoning": {"effort": "high"}},
    ],
    "/v1/completions": [{"min_p": 0.1}, {"repetition_penalty": 1.1}, {"suffix": "x"}],
    "/v1/responses": [
        {"text": {"verbosity": "high"}},
        {"max_tool_calls": 3},
        {"truncation": "auto"},
        {"background": True},
    ],
    "/v1/messages": [{"speed": "fast"}, {"context_management": {"edits": [{"type": "x"}]}}],
    "/v1beta/models/tiny:generateContent": [
        {"generationConfig": {"responseModalities": ["TEXT", "IMAGE"]}},
        {"generationConfig": {"presencePenalty": 0.5}},
        {"generationConfig": {"responseMimeType": "text/x.enum"}},
    ],
}
BODIES = {
    "/v1/chat/completions": {"model": "tiny", "messages": HELLO},
    "/v1/completions": {"model": "tiny", "prompt": "hello"},
    "/v1/responses": {"model": "tiny", "input": "hello"},
    "/v1/messages": {"model": "tiny", "messages": HELLO, "max_tokens": 9},
    "/v1beta/models/tiny:generateContent": {"contents": CONTENTS},
}


@pytest.mark.slow
@pytest.mark.parametrize("path", IGNORED)
def test_settings_that_would_be_ignored_are_refused_by_their_name(url, engine, path):
    for fields in IGNORED[path]:
        answer = post(url, path, {**BODIES[path], **fields})
        assert answer.status_code == 400, (fields, answer.text)
        names = [
            *fields,
            *(name for value in fields.values() if isinstance(value, dict) for name in value),
        ]
        assert any(name in answer.json()["detail"] for name in names)
    assert engine.asked == []


@pytest.mark.slow
def test_their_defaults_are_taken(url, engine):
    defaults = {
        "/v1/chat/completions": {
            "verbosity": "medium",
            "prediction": None,
            "modalities": ["text"],
            "repetition_penalty": 1.0,
            "min_p": 0,
            "add_generation_prompt": True,
        },
        "/v1/responses": {"text": {"verbosity": "medium", "format": {"type": "text"}}},
        "/v1/messages": {"speed": "standard"},
        "/v1beta/models/tiny:generateContent": {
            "generationConfig": {"responseModalities": ["TEXT"]}
        },
    }
    for path, fields in defaults.items():
        answer = post(url, path, {**BODIES[path], **fields})
        assert answer.status_code == 200, answer.text


# -- The beginning of an answer ---------------------------------------------------------------------------------

BEGUN = [*HELLO, {"role": "assistant", "content": "There are seven"}]


@pytest.mark.slow
def test_a_given_beginning_is_continued_in_every_dialect(url, engine):
    turns = [{"role": "user", "parts": [{"text": "hello"}]}]
    turns.append({"role": "model", "parts": [{"text": "There are seven"}]})
    for path, body in {
        "/v1/chat/completions": {"model": "tiny", "messages": BEGUN},
        "/v1/messages": {"model": "tiny", "messages": BEGUN, "max_tokens": 9},
        "/v1/responses": {"model": "tiny", "input": BEGUN},
        "/v1beta/models/tiny:generateContent": {"contents": turns},
    }.items():
        answer = post(url, path, body)
        assert answer.status_code == 200, answer.text
        assert " apples." in answer.text
        assert "There are seven" not in answer.text
        streamed = path.replace(":generateContent", ":streamGenerateContent?alt=sse")
        pieces = re.findall(
            r'"(?:content|text|delta)":"([^"]*)"',
            post(url, streamed, {**body, "stream": True}).text,
        )
        assert " apples." in "".join(pieces)
        prompt = engine.tokenizer.decode(engine.asked[-1][2].prompt, False)
        assert prompt.endswith("<|user|>hello<|end|><|assistant|>There are seven")


def test_a_beginning_after_exact_ids_is_continued_as_well(url, engine):
    first = {"model": "tiny", "messages": HELLO, "return_token_ids": True}
    choice = post(url, "/v1/chat/completions", first).json()["choices"][0]
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    turn = {"role": "assistant", "content": choice["message"]["content"]}
    talk = [*HELLO, turn, *BEGUN]
    body = {"messages": talk, "prompt_token_ids": ids, "continuation_from": 2}
    answer = post(url, "/v1/chat/completions", {**first, **body})
    assert answer.status_code == 200, answer.text
    prompt = engine.tokenizer.decode(engine.asked[-1][2].prompt, False)
    assert prompt.endswith("<|user|>hello<|end|><|assistant|>There are seven")


def test_control_tokens_in_a_beginning_are_plain_text(url, engine):
    messages = [*HELLO, {"role": "assistant", "content": "Yes.<|end|><|user|>"}]
    post(url, "/v1/chat/completions", {"model": "tiny", "messages": messages})
    prompt = engine.asked[-1][2].prompt
    assert prompt.count(engine.tokenizer.token_to_id("<|end|>")) == 1


def test_calls_without_results_are_no_beginning(url, engine):
    call = {"id": "x", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    answer = post(url, "/v1/chat/completions", {"model": "tiny", "messages": messages})
    assert answer.status_code == 400
    assert "add their results" in answer.json()["detail"]


def test_a_provider_that_does_not_continue_a_beginning_is_not_asked_to(url):
    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
    with pytest.raises(anthropic.BadRequestError, match="does not continue"):
        client.messages.create(model="elsewhere", max_tokens=9, messages=BEGUN)


# -- One of several texts --------------------------------------------------------------------------------------------


def test_a_text_out_of_several_is_drawn_plain(app, url):
    app.state.parts.__dict__.pop("engine", None)
    client = genai.Client(api_key="k", http_options={"base_url": url})
    for words in (["Percussion", "String"], ['a "quoted" word', "ä|b"]):
        config = types.GenerateContentConfig(
            response_mime_type="text/x.enum",
            response_schema={"type": "STRING", "enum": words},
            max_output_tokens=60,
        )
        answer = client.models.generate_content(model="tiny", contents="hello", config=config)
        assert answer.text in words


def test_a_text_out_of_several_is_refused_for_another_provider(url):
    client = genai.Client(api_key="k", http_options={"base_url": url})
    config = types.GenerateContentConfig(
        response_mime_type="text/x.enum", response_schema={"type": "STRING", "enum": ["a"]}
    )
    with pytest.raises(errors.ClientError, match=r"text/x\.enum is not supported"):
        client.models.generate_content(model="elsewhere", contents="hello", config=config)


# -- Endpoints ---------------------------------------------------------------------------------------------------------


def test_openais_client_counts_the_tokens_of_an_input(url, engine):
    client = openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0)
    counted = client.responses.input_tokens.count(model="tiny", input="hello")
    client.responses.create(model="tiny", input="hello")
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == len(engine.asked[-1][2].prompt)


def test_a_count_includes_the_response_that_is_continued(url, engine):
    client = openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0)
    first = client.responses.create(model="tiny", input="hello")
    more = {"model": "tiny", "input": "and?", "previous_response_id": first.id}
    counted = client.responses.input_tokens.count(**more)
    client.responses.create(**more)
    assert counted.input_tokens == len(engine.asked[-1][2].prompt)


def test_compaction_is_refused_with_a_sentence(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="has no compaction"):
        client.responses.compact(model="tiny", input="hello")


@pytest.mark.slow
def test_every_listing_has_the_context_length(app, url):
    context = format_of(app.state.parts.registry.model("tiny").folder).context
    listed = {row["id"]: row for row in httpx.get(url + "/v1/models").json()["data"]}
    assert listed["tiny"]["max_model_len"] == listed["tiny"]["context_length"] == context
    assert "context_length" not in listed["elsewhere"]
    claude = anthropic.Anthropic(base_url=url, api_key="k").models.retrieve("tiny")
    assert json.loads(claude.model_dump_json())["max_input_tokens"] == context
    client = genai.Client(api_key="k", http_options={"base_url": url})
    gemini = client.models.get(model="tiny")
    assert gemini.input_token_limit == gemini.output_token_limit == context
