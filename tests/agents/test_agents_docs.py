"""docs/agents.md says what is so: its snippets run, its settings, options and kinds exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hud.agents import ScriptedAgent
from hud.agents.human import HumanAgent
from hud.agents.providers.agent_kind import model_kinds
from hud.agents.types import AgentConfig, ProviderConfig
from hud.cli.evaluation.eval import command
from hud.environment import Environment
from hud.eval import Taskset
from hud.inference.prices import price_of

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def tasks(monkeypatch, tmp_path):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    env = Environment("rooms")

    @env.tool
    async def look() -> str:
        """Look around."""
        return "a door"

    @env.tool
    async def count(letter: str) -> int:
        """Count a letter."""
        return 3

    @env.template()
    async def escape():
        """Find the way out."""
        answer = yield "Get out."
        yield float("door" in answer or answer == "3")

    return Taskset("rooms", [escape()])


def snippet(word):
    """The snippet that holds a word, as the body of a coroutine."""
    (found,) = [text for text in SNIPPETS if word in text]
    lines = "".join(f"    {line}\n" for line in found.splitlines())
    scope = {}
    exec(f"async def body(tasks):\n{lines}    return locals()\n", scope)
    return scope["body"]


async def test_oracles_play(tasks):
    found = await snippet("def oracle")(tasks)
    assert found["job"].reward == 1.0
    assert (await tasks.run(ScriptedAgent(found["oracle"]))).reward == 1.0


async def test_an_agent_of_ones_own_plays(tasks):
    found = await snippet("class Clerk")(tasks)
    job = await tasks.run(found["Clerk"]())
    assert (job.reward, job.runs[0].model) == (1.0, "clerk")


async def test_a_person_plays(tasks, monkeypatch):
    class Person(HumanAgent):
        def __init__(self, **settings):
            super().__init__(ask=lambda prompt: "answer a door", say=lambda text: None, **settings)

    monkeypatch.setattr("hud.agents.human.HumanAgent", Person)
    found = await snippet("HumanAgent(")(tasks)
    assert found["job"].reward == 1.0


def test_kinds_settings_and_options_exist():
    kinds = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert {kind: agent for kind, agent in kinds if kind != "human"} == {
        kind.name: kind.agent for kind in model_kinds().values()
    }
    table = PAGE.partition("| setting | option |")[2].partition("\n\n")[0]
    named = [
        name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])
    ]
    known = AgentConfig.model_fields.keys() | ProviderConfig.model_fields.keys()
    known |= {"max_tokens", "temperature"}  # Of every type, under its own name for them.
    assert len(named) > 10
    assert set(named) <= known
    options = {option for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"`(--[a-z-]+)`", table)) <= options


def test_prices_of_ones_own_are_read(monkeypatch, tmp_path):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "prices.json").write_text(text)
    found = price_of("my-model")
    assert found is not None
    assert {"my-model": found.model_dump(exclude_none=True)} == json.loads(text)
