"""A model whose chat template shows no tools: said when it is added, and refused before any rollout of tasks with tools."""

import json

import pytest
from tests.engine.test_chat_templates import PLAIN, folder_of

from hud.cli.main import run
from hud.client import disconnect

TASKS = """
from hud import Environment

env = Environment("desk")

@env.tool
def look(place: str) -> str:
    return "nothing"

@env.template()
async def find():
    answer = yield "Find it."
    yield float(answer == "it")

tasks = [find()]
"""
REFUSED = "Environment 'desk' has tools (look), and the chat template of 'plain' shows none"


@pytest.fixture
def hud(tmp_path, monkeypatch, capsys):
    home = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(home))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "bare.py").write_text(TASKS.replace("@env.tool\n", ""))
    folder_of(tmp_path / "folder", {}, {"chat_template.jinja": PLAIN})

    def call(*arguments, code=0):
        capsys.readouterr()
        assert run([*arguments]) == code
        return capsys.readouterr()

    yield call
    disconnect(home)


def test_it_is_said_when_the_model_is_added(hud, tmp_path):
    added = hud("models", "add", "folder", "--name", "plain")
    assert "The chat template of plain shows no tools" in added.out
    shown = hud("models", "add", "folder", "--name", "again", "--json")
    assert json.loads(shown.out)["shows_tools"] is False
    usual = folder_of(tmp_path / "usual", {}, {"chat_template.jinja": "{{ tools }}" + PLAIN})
    said = hud("models", "add", str(usual), "--name", "usual", "--json")
    assert json.loads(said.out)["shows_tools"] is True
    assert said.err == ""


def test_evaluations_and_training_are_refused_before_the_first_rollout(hud):
    hud("models", "add", "folder", "--name", "plain")
    assert REFUSED in hud("eval", "tasks.py", "plain", code=2).err
    assert REFUSED in hud("train", "plain", "tasks.py", "--steps", "1", code=2).err
    assert json.loads(hud("jobs", "--json").out) == []
    hud("eval", "bare.py", "plain", "--max-tokens", "4")
