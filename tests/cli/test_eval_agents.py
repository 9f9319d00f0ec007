"""`hud eval ENV AGENT`: the kinds of agent, their settings, time limits and costs, as a person types them."""

from __future__ import annotations

import json

import pytest
from tests.agents.servers import anthropic, gemini, openai_chat, openai_responses
from tests.agents.servers.loopback import Hang, beside
from tests.agents.servers.openai_responses import KEY, OpenAIResponses, call, refuse, say

import hud.client
from hud.cli.main import run
from hud.inference.prices import price_of

WORLD = '''\
"""A world of doors."""

import asyncio

from hud import Environment

env = Environment("rooms")


@env.tool
async def look(where: str = "around") -> str:
    """Look somewhere."""
    return f"{where}: a door"


@env.tool
async def nap() -> str:
    """Sleep for ever."""
    await asyncio.sleep(3600)
    return "never"


@env.template()
async def escape(prompt: str = "Get out."):
    """Find the way out."""
    answer = yield prompt
    yield float(answer == "door")


tasks = [escape(), escape(prompt="Get out of here.")]
'''


@pytest.fixture
def world(tmp_path, monkeypatch):
    home = tmp_path / "home"
    for name in ("HUD_API_URL", "HUD_GATEWAY_URL", "HUD_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HUD_HOME", str(home))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "env.py"
    path.write_text(WORLD)
    yield str(path)
    hud.client.disconnect(home)


def played(capsys, *arguments, code=0):
    assert run(["eval", *arguments, "--runtime", "local", "--json"]) == code
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    assert run(["eval", *arguments]) == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_a_kind_of_agent_plays_with_its_own_model_and_the_cost_is_in_the_summary(
    world, capsys, monkeypatch
):
    with beside(OpenAIResponses([call("look", "c1")], [say("door")])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        found = played(capsys, world, "openai")
    assert (found["reward"], server.refused) == (1.0, [])
    assert server.requests[0]["model"] == "gpt-5.6"
    price = price_of("gpt-5.6")
    dollars = 2 * (60 * price.input + 40 * price.cached + 20 * price.output) / 1e6
    assert found["statistics"]["cost_usd"] == pytest.approx(dollars)
    (row,) = found["runs"]
    assert row["cost_usd"] == pytest.approx(dollars)
    assert run(["jobs", found["job_id"]]) == 0
    assert f"${dollars:.4f}" in capsys.readouterr().out
    assert run(["trace", row["trace_id"]]) == 0
    assert f"200 tokens in, 40 out  ${dollars:.4f}" in capsys.readouterr().out
    assert run(["trace", row["trace_id"], "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["trace"]["steps"]
    assert sum((s.get("usage") or {}).get("cost_usd", 0) for s in steps) == pytest.approx(dollars)


@pytest.mark.slow
def test_a_model_is_played_by_the_agent_that_its_name_asks_for(world, capsys, monkeypatch):
    with beside(OpenAIResponses([say("door")], [say("door")])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        assert played(capsys, world, "gpt-5-mini")["reward"] == 1.0
        played(capsys, world, "openai", "--model", "gpt-4.1")
    assert [body["model"] for body in server.requests] == ["gpt-5-mini", "gpt-4.1"]


@pytest.mark.slow
def test_settings_and_limits_reach_the_agent(world, capsys):
    turns = [[call("nap", "c1")], [say("Shall I go?")], [say("door")]]
    with beside(OpenAIResponses(*turns)) as server:
        found = played(
            capsys,
            world,
            "operator",
            *("--config", f"base_url={server.url}/v1", "-c", "reasoning.effort=low"),
            *("--config", f"api_key={KEY}", "-c", "stream=true"),
            *("--tool-timeout", "0.2", "--max-steps", "3", "--auto-respond"),
        )
    assert (found["reward"], server.refused) == (1.0, [])
    assert server.requests[0]["reasoning"] == {"effort": "low"}
    assert server.requests[0]["stream"] is True
    assert "0.2" in server.requests[1]["input"][-1]["output"]
    assert "Decide by yourself" in server.requests[2]["input"][-1]["content"][0]["text"]


@pytest.mark.slow
def test_an_agent_whose_time_is_over_is_graded_by_what_it_has(world, capsys, monkeypatch):
    with beside(OpenAIResponses([say("door"), call("look", "c1")], Hang())) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        found = played(capsys, world, "openai", "--agent-timeout", "1.5")
    (row,) = found["runs"]
    assert (row["stop_reason"], row["reward"]) == ("timeout", 1.0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["openai", "-c", "max_step=3"], "there is no setting 'max_step'; the settings are"),
        (["openai", "-c", "max_output_tokens=1"], "max_output_tokens: Input should be greater"),
        (["gpt-5", "-c", "base_url=http://x"], "create_agent takes no base_url"),
        (["openai_compatible"], "needs --model"),
        (["openai_compatible", "--model", "m"], "needs the address of its server"),
        (["gpt-5", "--model", "gpt-5-mini"], "Two models are named"),
        (["human", "-c", "stream=true"], "human takes no stream"),
        (["human"], "standard input is none"),
        ([], "Which agent?"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(world, capsys, arguments, sentence):
    assert sentence in " ".join(refused(capsys, world, *arguments).split())


def test_without_a_key_it_is_said_where_one_goes(world, capsys, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    assert "set OPENAI_API_KEY" in " ".join(refused(capsys, world, "openai").split())
    assert "set OPENAI_API_KEY" in " ".join(refused(capsys, world, "gpt-5").split())


def test_a_trace_shows_refusals_and_sources(world, capsys, monkeypatch):
    note = {"type": "url_citation", "url": "https://example.org", "title": "Doors"}
    cited = say("door", annotations=[{**note, "start_index": 0, "end_index": 4}])
    with beside(OpenAIResponses([cited], [refuse("I will not.")])) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        found = played(capsys, world, "openai", "--all", "--max-concurrent", "1")
    shown = ""
    for row in found["runs"]:
        assert run(["trace", row["trace_id"]]) == 0
        shown += capsys.readouterr().out
    assert "https://example.org" in shown
    assert "I will not." in shown


KINDS = {
    "claude": (anthropic.AnthropicMessages, anthropic, "ANTHROPIC", ""),
    "openai": (openai_responses.OpenAIResponses, openai_responses, "OPENAI", "/v1"),
    "operator": (openai_responses.OpenAIResponses, openai_responses, "OPENAI", "/v1"),
    "gemini": (gemini.GeminiContent, gemini, "GEMINI", ""),
    "gemini_cua": (gemini.GeminiContent, gemini, "GEMINI", ""),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_plays_with_its_providers_key_and_has_a_cost(world, capsys, monkeypatch, kind):
    made, words, provider, path = KINDS[kind]
    for name in ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
    with beside(made([words.call("look", "c1")], [words.say("door")])) as server:
        monkeypatch.setenv(f"{provider}_API_KEY", words.KEY)
        monkeypatch.setenv(f"{provider}_BASE_URL", server.url + path)
        found = played(capsys, world, kind, "--max-steps", "5")
    assert (found["reward"], server.refused, len(server.requests)) == (1.0, [], 2)
    assert found["statistics"]["cost_usd"] > 0


@pytest.mark.slow
def test_any_server_of_chat_completions_plays(world, capsys):
    turns = openai_chat.call(("look", "c1", {})), openai_chat.say("door")
    with beside(openai_chat.OpenAIChat(*turns)) as server:
        place = ("-c", f"base_url={server.url}/v1", "-c", f"api_key={openai_chat.KEY}")
        found = played(capsys, world, "openai_compatible", "--model", "mine", *place)
    assert (found["reward"], server.refused) == (1.0, [])
    assert found["statistics"]["cost_usd"] is None


@pytest.mark.slow
def test_the_address_of_a_server_with_one_model_is_enough(world, capsys):
    turns = openai_chat.call(("look", "c1", {})), openai_chat.say("door"), openai_chat.say("door")
    with beside(openai_chat.OpenAIChat(*turns)) as server:
        place = ("--model", f"{server.url}/v1", "-c", f"api_key={openai_chat.KEY}")
        found = played(capsys, world, *place)
        assert played(capsys, world, "openai_compatible", *place)["reward"] == 1.0
    assert (found["reward"], server.refused) == (1.0, [])
    assert server.requests[0]["model"] == "mine"
    assert found["name"].endswith("mine")


@pytest.mark.slow
def test_of_several_models_of_a_server_one_is_named(world, capsys):
    with beside(openai_chat.OpenAIChat(openai_chat.say("door"), models=("a", "b"))) as server:
        place = (world, "--model", f"{server.url}/v1", "-c", f"api_key={openai_chat.KEY}")
        assert "serves a, b; name one: -c model=NAME" in refused(capsys, *place)
        assert played(capsys, *place, "-c", "model=b")["reward"] == 1.0
    assert [body["model"] for body in server.requests] == ["b"]


@pytest.mark.slow
def test_an_address_without_models_is_told(world, capsys):
    with beside(openai_chat.OpenAIChat(models=())) as server:
        assert "answered 404 and no list of models" in refused(capsys, world, "--model", server.url)
        assert "serves none" in refused(capsys, world, "--model", f"{server.url}/v1")
        place = ("--model", f"{server.url}/v1", "-c", "base_url=http://x/v1")
        assert "leave base_url out" in refused(capsys, world, *place)
    assert run(["eval", world, "--model", f"{server.url}/v1"]) == 1
    assert "cannot be reached" in capsys.readouterr().err


@pytest.mark.slow
def test_an_evaluation_whose_every_run_failed_by_its_script_exits_with_1(world, tmp_path, capsys):
    (tmp_path / "broken.py").write_text("async def agent(run):\n    raise KeyError('door')\n")
    summary = played(capsys, world, "broken.py:agent", "--all", code=1)
    assert [run["failure_kind"] for run in summary["runs"]] == ["agent", "agent"]
    (tmp_path / "lost.py").write_text("async def agent(run):\n    run.trace.content = 'wall'\n")
    summary = played(capsys, world, "lost.py:agent", "--all")
    assert summary["reward"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["codex", "-m", "x"], "no program 'codex' on this machine; install it: npm install"),
        (["nothing", "--command", "true"], "--command goes with the agent harness"),
        (["harness", "-m", "x"], "command"),
        (["codex", "--agent-url", "http://127.0.0.1:9"], "--agent-url stands for AGENT"),
        (["--agent-url", "http://127.0.0.1:9"], "needs --model"),
    ],
)
def test_programs_that_cannot_play_are_refused_before_any_run(
    world, monkeypatch, capsys, arguments, problem
):
    monkeypatch.setenv("PATH", "/nowhere")
    assert run(["eval", world, *arguments]) == 2
    assert problem in capsys.readouterr().err
