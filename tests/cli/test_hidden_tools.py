"""A model whose chat template shows no tools: the note when it is added, and tasks with tools that it plays and learns."""

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
    assert "shows no tools, so they are written into its system prompt" in added.out
    assert "in the format hermes" in added.out
    coded = hud("models", "add", "folder", "--name", "coded", "--tool-format", "qwen3_coder")
    assert "in the format qwen3_coder" in coded.out
    shown = hud("models", "add", "folder", "--name", "again", "--json")
    assert json.loads(shown.out)["shows_tools"] is False
    usual = folder_of(tmp_path / "usual", {}, {"chat_template.jinja": "{{ tools }}" + PLAIN})
    said = hud("models", "add", str(usual), "--name", "usual", "--json")
    assert json.loads(said.out)["shows_tools"] is True
    assert said.err == ""


def test_tasks_with_tools_are_played_and_learned(hud):
    hud("models", "add", "folder", "--name", "plain")
    hud("eval", "tasks.py", "plain", "--max-tokens", "4", "--max-steps", "1")
    hud("eval", "bare.py", "plain", "--max-tokens", "4")
    hud("train", "plain", "tasks.py", "--steps", "1", "--group", "2", "--max-tokens", "4")
