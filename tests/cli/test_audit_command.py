"""`hud audit`: the exit code, the tables, JSON, and a job's best runs."""

from __future__ import annotations

import json

import pytest

from hud.cli.main import run
from hud.client import disconnect

TASKS = """
from hud import Environment
from hud.graders import contains, exact_match

env = Environment("stones")

@env.template()
async def honest(stone: str):
    answer = yield f"How many letters has {stone}?"
    yield exact_match(answer, str(len(stone)))

@env.template()
async def lenient(stone: str):
    answer = yield f"Write about {stone}."
    yield contains(answer, stone)

def play(run):
    return str(len(run.prompt_text.split()[-1]) - 1)

tasks = [honest(stone=stone) for stone in ("amber", "basalt")]
both = [*tasks, lenient(stone="amber")]
"""


@pytest.fixture
def hud(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lenient.py").write_text(TASKS.replace("both = ", "tasks = "))
    (tmp_path / "honest.py").write_text(TASKS[: TASKS.index("both =")])

    def call(line, code=0):
        capsys.readouterr()
        assert run(line.split()) == code
        said = capsys.readouterr()
        return said.err if code == 2 else said.out

    yield call
    disconnect(tmp_path / "home")


@pytest.mark.slow
def test_a_task_above_the_floor_fails_the_command(hud):
    shown = hud("audit lenient.py --solver honest.py:play --runtime local", code=1)
    lines = shown.splitlines()
    assert lines[0] == "lenient: 3 tasks, floor 0.05"
    assert lines[1].split() == ["exploit", "runs", "mean", "highest"]
    assert ["echo", "3", "0.333", "1.000"] in [line.split() for line in lines]
    assert "lenient(stone='amber')" in shown
    assert "echo (!)" in shown
    assert lines[-1] == (
        "Highest reward without the work: mean 0.333, most 1.000. 1 of 3 tasks above the floor."
    )
    hud("audit lenient.py --runtime local --floor 1")
    hud("audit lenient.py --runtime local --exploits nothing,judge")


@pytest.mark.slow
def test_a_taskset_without_faults_passes_also_in_processes_of_its_own(hud):
    found = json.loads(hud("audit honest.py --solver honest.py:play --tasks 1 --json"))
    (task,) = found["tasks"]
    assert (task["highest"], task["solved"], task["above"]) == (0.0, 1.0, False)
    assert found["above"] == []
    assert found["complete"]


@pytest.mark.slow
def test_a_job_gives_answers_and_its_best_runs_are_shown(hud):
    hud("eval honest.py honest.py:play --all --runtime local")
    (job,) = json.loads(hud("jobs --json"))
    shown = hud(f"audit honest.py --job {job['id'][:8]} --runtime local --exploits guess")
    assert ["replay", "2", "1.000", "1.000"] in [line.split() for line in shown.splitlines()]
    top = hud(f"audit --top {job['id'][:8]} -n 1")
    assert "the highest of 2 rewards" in top
    assert "answer: " in top
    assert "hud trace " in top
    assert len(json.loads(hud(f"audit --top {job['id']} --json"))["runs"]) == 2


def test_what_cannot_be_audited_is_told(hud):
    assert "Which tasks?" in hud("audit", code=2)
    assert "no exploit 'bribe'" in hud("audit honest.py --exploits bribe", code=2)
    assert "stands for TASKS" in hud("audit honest.py --top 12", code=2)
