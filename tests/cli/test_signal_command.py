"""`hud signal`: the table of a job's tasks, its JSON, and the curriculum that it proposes."""

import json

import pytest

from hud.cli.main import run
from hud.client import disconnect

TASKS = """
from hud import Environment
from hud.agents import ScriptedAgent

env = Environment("coins")

@env.template()
async def flip(chance: float):
    answer = yield f"flip {chance}"
    yield float(answer)

tasks = [flip(chance=chance) for chance in (0.0, 0.5, 1.0)]

def play(run):
    chance = float(run.prompt_text.split()[1])
    run.trace.content = str(float(run.attempt < 4 * chance))

agent = ScriptedAgent(play)
"""


@pytest.fixture
def hud(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "agent.py").write_text("from tasks import agent\n")

    def call(line, code=0):
        capsys.readouterr()
        assert run(line.split()) == code
        said = capsys.readouterr()
        return said.out if code == 0 else said.err

    yield call
    disconnect(tmp_path / "home")


def test_a_job_s_tasks_are_shown_with_what_they_teach(hud):
    hud("eval tasks.py agent.py --all --group 4")
    (job,) = json.loads(hud("jobs --json"))
    shown = hud(f"signal {job['id'][:8]}")
    assert shown.splitlines()[1].split() == [
        "flip(chance=0.5)", "4", "0.500", "0.500", "0.50", "1.00", "0/1", "100.0%", "now",
    ]  # fmt: skip
    assert "67% of the recorded groups have no signal." in shown
    found = json.loads(hud(f"signal {job['id']} --json"))
    assert {stage: len(slugs) for stage, slugs in found["curriculum"].items()} == {
        "now": 1, "later": 1, "done": 1, "duplicate": 0,
    }  # fmt: skip
    assert found["job"] == job["id"]
    against = json.loads(hud(f"signal {job['id']} --against {job['id']} --json"))["against"]
    (means,) = against.values()
    assert sorted(means.values()) == [0.0, 0.5, 1.0]
    assert "0.500" in hud(f"signal {job['id']} --against {job['id']}").splitlines()[1].split()[-1]
    assert "no job" in hud("signal nothing", 2).lower()
