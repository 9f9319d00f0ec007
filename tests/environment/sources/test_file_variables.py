"""Secrets of an environment: variables of the `.env` in the folder of its source, wherever it runs."""

from __future__ import annotations

import os

import pytest

from hud.eval import ForkRuntime, LocalRuntime, SubprocessRuntime, Taskset
from hud.trace import ToolCall
from hud.trace.recording.recorder import NullRecorder

SOURCE = '''
import os
import subprocess

from hud import Environment

env = Environment("shop")


@env.tool
def own() -> str:
    """Read the key."""
    return os.environ.get("SHOP_API_KEY", "none")


@env.tool
def inherited() -> str:
    """Start a program."""
    return subprocess.run(["env"], capture_output=True, text=True).stdout


@env.template()
async def buy():
    yield "Buy."
    yield 1.0


tasks = [buy()]
'''


@pytest.fixture
def shop(tmp_path, monkeypatch):
    for name in ("SHOP_API_KEY", "SHOP_REGION"):
        monkeypatch.setenv(name, "")  # Restored at the end.
        monkeypatch.delenv(name)
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "env.py").write_text(SOURCE)
    (folder / ".env").write_text("SHOP_API_KEY=sk-1\nSHOP_REGION=eu\nHUD_API_KEY=machine\n")
    return folder


def heard_by(answers):
    async def agent(run):
        for name in ("own", "inherited"):
            answers[name] = (await run.call_tool(ToolCall(name=name))).text

    return agent


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LocalRuntime, ForkRuntime, SubprocessRuntime])
async def test_the_environments_code_reads_them_from_another_folder(shop, kind):
    answers = {}
    runtime = kind() if kind is LocalRuntime else kind(shop / "env.py")
    tasks = Taskset.from_file(shop / "env.py")
    job = await tasks.run(heard_by(answers), runtime=runtime, recorder=NullRecorder())
    if hasattr(runtime, "aclose"):
        await runtime.aclose()
    assert job.errors == []
    assert answers["own"] == "sk-1"
    if kind is not LocalRuntime:
        assert "sk-1" not in answers["inherited"]


def test_settings_of_the_machine_are_none(shop, monkeypatch):
    monkeypatch.delenv("HUD_API_KEY", raising=False)
    Taskset.from_file(shop / "env.py")
    assert "HUD_API_KEY" not in os.environ


@pytest.mark.slow
def test_a_variable_of_the_process_takes_precedence(shop, monkeypatch):
    monkeypatch.setenv("SHOP_API_KEY", "sk-2")
    Taskset.from_file(shop / "env.py")
    assert os.environ["SHOP_API_KEY"] == "sk-2"


def test_each_environment_has_the_values_of_its_own_folder(shop, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "env.py").write_text(SOURCE)
    (other / ".env").write_text("SHOP_API_KEY=sk-3\n")
    Taskset.from_file(shop / "env.py")
    Taskset.from_file(other / "env.py")
    assert os.environ["SHOP_API_KEY"] == "sk-3"
