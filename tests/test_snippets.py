"""The snippets that guides and seeds paste, run as they are written."""

import subprocess
import sys

import pytest


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)


def test_the_names_that_guides_import():
    from hud import Environment, TrainingClient
    from hud.agents import create_agent
    from hud.eval import Job
    from hud.train import DatumTensors

    assert all((Environment, TrainingClient, create_agent, Job, DatumTensors))


async def test_a_scenario_mints_tasks_and_the_module_is_callable():
    import hud
    from hud import Environment

    env = Environment("letters")

    @env.scenario("count")
    async def count(word: str, letter: str = "r"):
        answer = yield f"How many {letter!r} are in {word!r}?"
        yield 1.0 if answer == str(word.count(letter)) else 0.0

    from hud.agents import ScriptedAgent

    def answer(run):
        run.trace.content = "3"

    task = count.task(word="strawberry")
    assert task == count(word="strawberry")
    async with hud.eval(task) as ctx:
        result = await ScriptedAgent(answer).run(ctx)
        assert result.reward == 1.0


async def test_a_bare_template_runs():
    from hud import Environment
    from hud.agents import ScriptedAgent

    env = Environment("greeter")

    @env.template()
    async def greet(name: str = "Ada"):
        """Say hello."""
        answer = yield f"Greet {name}."
        yield float(name in answer)

    def answer(run):
        run.trace.content = "Hello Ada"

    job = await greet().run(ScriptedAgent(answer))
    assert job.reward == 1.0
    assert [run.reward for run in job.runs] == [1.0]


@pytest.mark.parametrize("module", ["hud", "hud.eval", "hud.train", "hud.agents"])
def test_importing_pulls_in_no_heavy_library(module):
    code = (
        f"import {module}, sys; "
        "print([name for name in ('torch', 'transformers', 'fastapi', 'sqlalchemy', 'matplotlib') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
