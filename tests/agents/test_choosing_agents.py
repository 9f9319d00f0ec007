"""`create_agent`: which kind of agent plays a model, by the catalogue and by the model's name."""

from __future__ import annotations

import pytest
from tests.agents.servers.openai_chat import OpenAIChat
from tests.agents.servers.openai_chat import say as say_in_chat
from tests.agents.servers.openai_responses import KEY, OpenAIResponses, say

import hud.client
from hud.agents import create_agent
from hud.agents.agent_kinds import kind_of_model
from hud.environment import Environment
from hud.errors import NotFoundError, UsageError
from hud.eval.rollouts import rollout
from hud.trace.recording.recorder import NullRecorder


@pytest.fixture
def home(tmp_path, monkeypatch):
    home = tmp_path / "home"
    for name in ("HUD_API_URL", "HUD_GATEWAY_URL", "HUD_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HUD_HOME", str(home))
    yield home
    hud.client.disconnect(home)


@pytest.fixture
def task():
    env = Environment("rooms")

    @env.template()
    async def escape():
        """Find the way out."""
        answer = yield "Get out."
        yield float(answer == "door")

    return escape()


async def play(task, agent):
    try:
        return await rollout(
            task, agent, runtime=lambda task: task.environment.run(), recorder=NullRecorder()
        )
    finally:
        await agent.aclose()


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("claude-sonnet-4-6", "claude"),
        ("gpt-5.6", "openai"),
        ("gpt-4o-mini", "openai"),
        ("o3", "openai"),
        ("o4-mini", "openai"),
        ("chatgpt-4o-latest", "openai"),
        ("computer-use-preview", "operator"),
        ("computer-use-preview-2025-03-11", "operator"),
        ("gemini-3-pro-preview", "gemini"),
        ("gemini-2.5-computer-use-preview-10-2025", "gemini_cua"),
        ("gpt-oss-120b", None),
        ("gpt2", None),
        ("olmo-3", None),
        ("my-claude-", None),
    ],
)
def test_a_models_name_tells_who_plays_it(model, kind):
    assert kind_of_model(model) == kind


async def test_a_providers_model_is_played_in_its_own_dialect(task, home, monkeypatch):
    async with OpenAIResponses([say("door")]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        agent = create_agent("gpt-5.6", reasoning={"effort": "low"}, max_steps=3)
        run = await play(task, agent)
    assert (run.reward, run.model, server.paths) == (1.0, "gpt-5.6", ["/v1/responses"])
    assert server.requests[0]["reasoning"] == {"effort": "low"}
    assert (agent.kind, agent.config.max_steps) == ("openai", 3)


async def test_the_catalogue_goes_before_the_name(task, home):
    """A model that somebody registered as `gpt-5-ours` is what they registered."""
    async with OpenAIChat(say_in_chat("door")) as server:
        provider = {"url": f"{server.url}/v1", "upstream_model": "ours"}
        provider |= {"price_in": 3.0, "price_out": 7.0}
        body = {"name": "gpt-5-ours", "provider": provider}
        await hud.client.connect().post("/v2/models/provide", body)
        server.check = lambda request, body: None  # What our gateway writes is tested there.
        agent = create_agent("gpt-5-ours", max_steps=3)
        run = await play(task, agent)
    assert (run.reward, server.paths) == (1.0, ["/v1/chat/completions"])
    assert server.requests[0]["model"] == "ours"
    assert run.trace.usage.cost_usd == pytest.approx((100 * 3 + 20 * 7) / 1e6)
    assert (agent.kind, agent.config.max_steps) == ("openai_compatible", 3)


async def test_settings_of_chat_completions_ask_for_that_agent(home):
    agent = create_agent("gpt-5.6", completion_kwargs={"max_tokens": 10})
    assert agent.kind == "openai_compatible"


async def test_a_model_that_nobody_knows_is_not_found_before_anything_starts(home):
    with pytest.raises(NotFoundError):
        await create_agent("no-such-model").prepare()


async def test_a_providers_model_without_a_key_is_refused_before_anything_starts(home):
    with pytest.raises(UsageError, match="set OPENAI_API_KEY"):
        await create_agent("gpt-5.6").prepare()


def test_settings_are_those_of_the_kind(home):
    assert create_agent("computer-use-preview").config.max_steps == 50
    with pytest.raises(UsageError, match="no setting 'thinking'; the settings are auto_respond"):
        create_agent("gpt-5.6", thinking={"type": "enabled"})
    with pytest.raises(UsageError, match="takes no api_key"):
        create_agent("gpt-5.6", api_key="k")
