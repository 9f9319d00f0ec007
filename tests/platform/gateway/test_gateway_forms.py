"""Answers in a form that was asked for: a model that writes at random cannot leave it."""

import json

import anthropic
import httpx
import jsonschema
import openai
import pytest
from google import genai
from pydantic import BaseModel
from tests.platform.gateway.gateway_server import make_platform, serving

HELLO = [{"role": "user", "content": "hello"}]
LOOK = {
    "type": "object",
    "properties": {"at": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["at"],
    "additionalProperties": False,
}
SAY = {
    "type": "object",
    "properties": {"word": {"enum": ["yes", "no"]}},
    "required": ["word"],
    "additionalProperties": False,
}
SCHEMAS = {"look": LOOK, "say": SAY}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    app = make_platform(tmp_path_factory.mktemp("home"))
    with serving(app) as url:
        yield url
    app.state.parts.close()


@pytest.fixture
def chat(url):
    return openai.OpenAI(base_url=url, api_key="k", max_retries=0).chat.completions


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_is_made(chat, seed, stream):
    asked = {"model": "tiny", "messages": HELLO, "tools": TOOLS, "seed": seed, "max_tokens": 200}
    asked |= {"tool_choice": "required", "parallel_tool_calls": False}
    if stream:
        with chat.stream(**asked) as events:
            choice = events.get_final_completion().choices[0]
    else:
        choice = chat.create(**asked).choices[0]
    assert (choice.finish_reason, choice.message.content or None) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_named_tool_is_the_one_that_is_called(chat, name):
    for seed in range(3):
        choice = {"type": "function", "function": {"name": name}}
        asked = {"tools": TOOLS, "tool_choice": choice, "seed": seed, "max_tokens": 200}
        answer = chat.create(model="tiny", messages=HELLO, **asked)
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == name
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[name])


@pytest.mark.parametrize("seed", range(5))
def test_an_answer_keeps_a_schema(chat, seed):
    described = {"name": "look", "schema": LOOK, "strict": True}
    form = {"type": "json_schema", "json_schema": described}
    asked = {"response_format": form, "seed": seed, "max_tokens": 200}
    answer = chat.create(model="tiny", messages=HELLO, **asked)
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content), LOOK)


@pytest.mark.slow
def test_json_is_an_object_as_far_as_it_goes(chat):
    for seed in range(5):
        asked = {"response_format": {"type": "json_object"}, "seed": seed, "max_tokens": 300}
        choice = chat.create(model="tiny", messages=HELLO, temperature=0.5, **asked).choices[0]
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.slow
def test_other_dialects_ask_for_forms_too(url):
    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
    tools = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    asked = {"model": "tiny", "max_tokens": 200, "messages": HELLO, "tools": tools}
    said = client.messages.create(tool_choice={"type": "tool", "name": "say"}, **asked)
    assert (said.content[0].name, said.stop_reason) == ("say", "tool_use")
    said = client.messages.create(tool_choice={"type": "any"}, **asked)
    assert said.content[0].type == "tool_use"

    class Say(BaseModel):
        at: bool

    gemini = genai.Client(api_key="k", http_options={"base_url": url})
    config = {"response_mime_type": "application/json", "response_json_schema": SAY}
    answer = gemini.models.generate_content(model="tiny", contents="x", config=config)
    jsonschema.validate(json.loads(answer.text), SAY)
    parsed = openai.OpenAI(base_url=url, api_key="k").responses.parse(
        model="tiny", input="x", text_format=Say
    )
    assert isinstance(parsed.output_parsed, Say)


@pytest.mark.slow
def test_what_is_bound_gives_no_ids_to_train_on_and_others_stay_free(url):
    body = {"model": "tiny", "messages": HELLO, "return_token_ids": True, "max_tokens": 50, "n": 3}
    free = httpx.post(url + "/chat/completions", json={**body, "seed": 1}).json()["choices"]
    assert all(choice["token_ids"] for choice in free)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": LOOK}}
    bound = {**body, "response_format": form, "logprobs": True, "top_logprobs": 5}
    for choice in httpx.post(url + "/chat/completions", json=bound).json()["choices"]:
        assert "token_ids" not in choice
        assert all(entry["logprob"] is not None for entry in choice["logprobs"]["content"])


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "#/nowhere"}, {"pattern": "("}])
def test_a_schema_that_cannot_be_kept_is_refused(url, schema):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"model": "tiny", "messages": HELLO, "response_format": form}
    answer = httpx.post(url + "/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert "cannot be kept" in answer.json()["detail"]
