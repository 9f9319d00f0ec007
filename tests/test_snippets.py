"""The snippets that guides and seeds paste, run as they are written."""

import os
import subprocess
import sys

import pytest

TRAINING = (
    *("torch", "numba", "safetensors", "tokenizers", "transformers", "gguf", "PIL"),
    *("llguidance", "matplotlib", "aiohttp"),
)
"""Modules of the extra `train` alone."""


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


def test_an_evaluation_is_recorded_without_the_training_extra(tmp_path):
    (tmp_path / "tasks.py").write_text(
        "from hud import Environment\n"
        "env = Environment('letters')\n"
        "@env.template()\n"
        "async def say():\n"
        "    answer = yield 'Say a.'\n"
        "    yield float(answer == 'a')\n"
        "tasks = [say()]\n"
    )
    (tmp_path / "agent.py").write_text("def agent(messages, tools, trace): return 'a'\n")
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {TRAINING}: raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from hud.cli.main import run\n"
        "sys.exit(run(['eval', 'tasks.py', 'agent.py']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "HUD_HOME": str(tmp_path / "home"), "HUD_API_URL": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1.000" in done.stdout
