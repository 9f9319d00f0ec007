"""How hard a client wants the model to think reaches the chat template of a model of this server, in every dialect."""

import httpx
import pytest
from tests.engine.reasoning_template import both_template
from tests.platform.gateway.gateway_server import (
    SIZES,
    TEXTS,
    ScriptedEngine,
    make_platform,
)

from hud.inference.served_model import OpenAIChatModel
from hud.trace import Continuation, SamplingParams
from hud_platform.gateway.chat_formats import format_of
from hud_platform.store.tables import LOCAL_TEAM

OFF = "<think>\n\n</think>\n\n"
CHAT = ("/chat/completions", {"messages": [{"role": "user", "content": "hello"}]})
RESPONSES = ("/responses", {"input": "hello"})
MESSAGES = (
    "/v1/messages",
    {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 50},
)
GEMINI = (
    "/v1beta/models/{model}:generateContent",
    {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]},
)


def thinking(**config):
    return {"generationConfig": {"thinkingConfig": config}}


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    app = make_platform(tmp_path_factory.mktemp("home"), slug="plain")
    made = app.state.parts.registry.of(LOCAL_TEAM).create("thinker", TEXTS, sizes=SIZES)
    (made.folder / "chat_template.jinja").write_text(both_template())
    yield app
    app.state.parts.close()


@pytest.fixture
def engine(app):
    tokenizer = format_of(app.state.parts.registry.model("thinker").folder).chat.tokenizer
    engine = ScriptedEngine(tokenizer, "hi")
    app.state.parts.__dict__["engine"] = engine
    return engine


def ask(url, dialect, model, **more):
    path, body = dialect
    return httpx.post(
        url + path.format(model=model), json={"model": model, **body, **more}, timeout=60
    )


def prompt_of(engine):
    return engine.tokenizer.decode(engine.asked[-1][2].prompt, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("dialect", "asked", "word"),
    [
        (CHAT, {"reasoning_effort": "low"}, "low"),
        (CHAT, {"reasoning_effort": "minimal"}, "low"),
        (CHAT, {"reasoning_effort": "xhigh"}, "high"),
        (RESPONSES, {"reasoning": {"effort": "high"}}, "high"),
        (MESSAGES, {"output_config": {"effort": "max"}}, "high"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 2048}}, "low"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 30000}}, "high"),
        (GEMINI, thinking(thinkingLevel="LOW"), "low"),
        (GEMINI, thinking(thinkingBudget=20000), "high"),
    ],
)
def test_an_effort_is_written_into_the_prompt(url, engine, dialect, asked, word):
    assert ask(url, dialect, "thinker", **asked).status_code == 200
    assert f"Reasoning: {word}" in prompt_of(engine)
    assert not prompt_of(engine).endswith(OFF)


@pytest.mark.parametrize(
    ("dialect", "asked"),
    [
        (CHAT, {"reasoning_effort": "none"}),
        (RESPONSES, {"reasoning": {"effort": "none"}}),
        (MESSAGES, {"thinking": {"type": "disabled"}}),
        (GEMINI, thinking(thinkingBudget=0)),
    ],
)
def test_thinking_is_turned_off(url, engine, dialect, asked):
    assert ask(url, dialect, "thinker", **asked).status_code == 200
    assert prompt_of(engine).endswith(OFF)


@pytest.mark.parametrize(
    ("dialect", "asked"),
    [
        (CHAT, {}),
        (RESPONSES, {"reasoning": {"summary": "auto"}}),
        (MESSAGES, {"thinking": {"type": "adaptive"}}),
        (GEMINI, thinking(thinkingBudget=-1, includeThoughts=True)),
        (GEMINI, thinking(thinkingLevel="THINKING_LEVEL_UNSPECIFIED")),
    ],
)
def test_without_an_effort_the_template_has_its_own(url, engine, dialect, asked):
    assert ask(url, dialect, "thinker", **asked).status_code == 200
    assert "Reasoning: medium" in prompt_of(engine)


@pytest.mark.parametrize(
    ("dialect", "asked"),
    [
        (CHAT, {"reasoning_effort": "low"}),
        (RESPONSES, {"reasoning": {"effort": "low"}}),
        (MESSAGES, {"output_config": {"effort": "low"}}),
        (GEMINI, thinking(thinkingLevel="LOW")),
    ],
)
def test_a_model_that_cannot_be_told_refuses(url, engine, dialect, asked):
    answer = ask(url, dialect, "plain", **asked)
    assert answer.status_code == 400
    assert "reads neither enable_thinking nor reasoning_effort" in answer.text
    assert not engine.asked


@pytest.mark.parametrize(
    ("dialect", "asked"),
    [
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        (MESSAGES, {"thinking": {"type": "disabled"}}),
        (GEMINI, thinking(thinkingBudget=0)),
    ],
)
def test_budgets_that_clients_send_by_themselves_are_not_refused(url, engine, dialect, asked):
    assert ask(url, dialect, "plain", **asked).status_code == 200


@pytest.mark.parametrize(
    ("dialect", "asked"),
    [
        (CHAT, {"reasoning_effort": "banana"}),
        (RESPONSES, {"reasoning": {"effort": 3}}),
        (GEMINI, thinking(thinkingBudget="much")),
    ],
)
def test_an_effort_that_there_is_not_is_told(url, engine, dialect, asked):
    answer = ask(url, dialect, "thinker", **asked)
    assert answer.status_code == 400
    assert "must be" in answer.text


async def test_a_conversation_goes_on_with_its_effort(url, engine):
    model = OpenAIChatModel("thinker", base_url=url, extra={"return_token_ids": True})
    params = SamplingParams(max_tokens=50, reasoning_effort="none")
    talk = [{"role": "user", "content": "hello"}]
    try:
        first = await model.complete(talk, [], params)
        so_far = [*first.sample.prompt_token_ids, *first.sample.output_token_ids]
        talk += [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "again"}]
        second = await model.complete(talk, [], params, continuation=Continuation(so_far, 2))
    finally:
        await model.aclose()
    assert second.sample.prompt_token_ids[: len(so_far)] == so_far
    assert prompt_of(engine).count(OFF) == 2
