"""A worker keeps environments warm, each apart from the others, and no more of them than it may."""

import asyncio
import sys

import pytest

from hud.environment import Task
from hud.errors import EnvironmentFault
from hud.fleet.environments import WarmEnvironments

ENV = """
import os
from hud import Environment
env = Environment("{name}")

@env.template()
async def who():
    yield f"{name} {{os.getppid()}} {{os.environ.get('TOKEN')}} {{os.environ.get('HUD_API_KEY')}}"
    yield 1.0
"""


@pytest.fixture
def given(tmp_path):
    def make(name, **variables):
        source = tmp_path / f"{name}.py"
        source.write_text(ENV.format(name=name))
        build = {
            "build_id": name,
            "source": str(source),
            "python": sys.executable,
            "image": None,
            "variables": variables,
        }
        return {"problem": None, "environments": {name: build}}

    return make


async def prompt(environments, given, name):
    async with environments.provider(given)(Task(env=name, id="who")) as connection:
        return (await connection.start("who", {})).prompt.split()


async def test_a_build_is_imported_once_and_forked_for_each_rollout(given, monkeypatch):
    monkeypatch.setenv("HUD_API_KEY", "the worker's own")
    environments = WarmEnvironments()
    red = given("red", TOKEN="shh")
    first, second = [await prompt(environments, red, "red") for _ in range(2)]
    assert first == second  # One server forked both.
    assert first[2:] == ["shh", "None"]
    await environments.close()


@pytest.mark.slow
async def test_the_build_used_longest_ago_makes_room(given):
    environments = WarmEnvironments(most=1)
    red, blue = given("red"), given("blue")
    first = await prompt(environments, red, "red")
    assert (await prompt(environments, blue, "blue"))[0] == "blue"
    assert len(environments) == 1
    assert await prompt(environments, red, "red") != first
    await environments.close()


@pytest.mark.slow
async def test_a_build_that_is_played_in_stays(given):
    environments = WarmEnvironments(most=1)
    red, blue = given("red"), given("blue")
    async with environments.provider(red)(Task(env="red", id="who")) as playing:
        await asyncio.gather(*(prompt(environments, blue, "blue") for _ in range(2)))
        assert len(environments) == 1  # The idle one went.
        assert (await playing.start("who", {})).prompt.startswith("red ")
    await environments.close()


def test_an_environment_that_is_gone_is_told(given):
    with pytest.raises(EnvironmentFault, match="no build"):
        WarmEnvironments().provider({**given("red"), "problem": "There is no build."})
