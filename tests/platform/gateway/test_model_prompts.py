"""A checkpoint's system prompt is served in every dialect: callers change nothing."""

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import types
from tests.platform.gateway.gateway_server import ScriptedEngine, make_platform, serving

from hud_platform.models.checkpoint_tree import Tree
from hud_platform.store.tables import LOCAL_TEAM

PROMPT = "look at item 3"
CALLER = "the answer is 7 apples"
QUESTION = "look at item 5"


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    app = make_platform(tmp_path_factory.mktemp("home"))
    registry = app.state.parts.registry.of(LOCAL_TEAM)
    model = registry.model("tiny")
    tree: Tree = registry.tree
    tree.set_head(model, tree.add_prompt(model, PROMPT).id)
    yield app
    app.state.parts.close()


@pytest.fixture(scope="module")
def url(app):
    with serving(app) as url:
        yield url


@pytest.fixture
def engine(app, monkeypatch):
    """An engine that notes the ids of each prompt."""
    registry = app.state.parts.registry.of(LOCAL_TEAM)
    policy = app.state.parts.policies.serving(registry.model("tiny")).policy
    engine = ScriptedEngine(policy.chat.tokenizer, "the answer is 4 apples")
    engine.chat = policy.chat
    monkeypatch.setattr(app.state.parts.gateway.local, "engine", lambda: engine)
    return engine


def with_chat(url, system):
    messages = [{"role": "system", "content": system}] if system else []
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    client.chat.completions.create(
        model="tiny", messages=[*messages, {"role": "user", "content": QUESTION}]
    )


def with_responses(url, system):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    client.responses.create(model="tiny", input=QUESTION, instructions=system or openai.omit)


def with_messages(url, system):
    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
    asked = {
        "messages": [{"role": "user", "content": QUESTION}],
        "system": system or anthropic.omit,
    }
    client.messages.create(model="tiny", max_tokens=20, **asked)


def with_gemini(url, system):
    client = genai.Client(api_key="k", http_options={"base_url": url})
    config = types.GenerateContentConfig(system_instruction=system)
    client.models.generate_content(model="tiny", contents=QUESTION, config=config)


@pytest.mark.parametrize("call", [with_chat, with_responses, with_messages, with_gemini])
@pytest.mark.parametrize("system", [None, CALLER])
def test_a_prompt_is_served_before_the_callers_own(url, engine, call, system):
    call(url, system)
    together = PROMPT if system is None else f"{PROMPT}\n\n{system}"
    said = [{"role": "system", "content": together}, {"role": "user", "content": QUESTION}]
    assert engine.asked[0][2].prompt == engine.chat.render(said, [])


def test_another_checkpoint_has_its_own_prompt(url, engine):
    said = [{"role": "user", "content": QUESTION}]
    body = {"model": "tiny", "messages": said, "checkpoint": "base"}
    assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200
    assert engine.asked[0][2].prompt == engine.chat.render(said, [])


@pytest.mark.parametrize("prompt", ["the answer is 9 apples", ""])
def test_a_request_may_set_the_models_prompt(url, engine, prompt):
    said = [{"role": "user", "content": QUESTION}]
    body = {"model": "tiny", "messages": said, "system_prompt": prompt}
    assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200
    system = [{"role": "system", "content": prompt}] if prompt else []
    assert engine.asked[0][2].prompt == engine.chat.render([*system, *said], [])


def test_counted_tokens_include_the_prompt(url, engine):
    client = anthropic.Anthropic(base_url=url, api_key="k")
    messages = [{"role": "user", "content": QUESTION}]
    said = [{"role": "system", "content": PROMPT}, *messages]
    counted = client.messages.count_tokens(model="tiny", messages=messages)
    assert counted.input_tokens == len(engine.chat.render(said, []))


def test_a_conversation_goes_on_exactly(url, engine):
    """The second turn's prompt is the first one's ids, its answer, and what follows."""
    said = [{"role": "user", "content": QUESTION}]
    body = {"model": "tiny", "messages": said, "return_token_ids": True}
    choice = httpx.post(f"{url}/v1/chat/completions", json=body).json()["choices"][0]
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    said += [choice["message"], {"role": "user", "content": QUESTION}]
    body |= {"messages": said, "prompt_token_ids": ids, "continuation_from": 2}
    assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200
    assert engine.asked[1][2].prompt[: len(ids)] == ids
