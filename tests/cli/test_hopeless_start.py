"""A policy that earns nothing: `hud models create` and `hud train` say so, and the commands that they print help."""

import json
import shlex

import pytest

from hud.cli.main import run
from hud.client import disconnect

TASKS = """
from hud import Environment

TEAMS = {"refund": "billing", "crash": "engineering"}
env = Environment("tickets")

@env.template()
async def route(subject: str):
    answer = yield f"Who takes {subject}?"
    yield float(answer == TEAMS[subject])

tasks = [route(subject=subject) for subject in TEAMS]
"""
TEACHER = """
from itertools import cycle

teams = cycle(["billing", "billing", "engineering"])

def agent(messages, tools, trace):
    return next(teams)
"""
SMALL = "--hidden 32 --layers 1 --vocab-size 300 --max-context 96"
TRAIN = "train tiny tasks.py --group 4 --max-tokens 8 --lr 0.001"


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(folder))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "teacher.py").write_text(TEACHER)
    yield folder
    disconnect(folder)


@pytest.fixture
def hud(home, capsys):
    def call(line, code=0):
        capsys.readouterr()
        assert run(shlex.split(line)) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    return call


def commands(said, *marks):
    lines = [line.strip() for line in said.splitlines()]
    found = [line[len(mark) :] for line in lines for mark in marks if line.startswith(mark)]
    return [line.removeprefix("hud ") for line in found]


@pytest.mark.slow
def test_the_printed_commands_lead_from_random_weights_to_a_policy_that_earns(hud):
    said = hud(f"models create tiny --tasks tasks.py {SMALL}")
    assert "Its weights are random" in said
    record, learn, train = commands(said, "Next: ", "Then: ")
    assert record == "eval tasks.py claude --all --group 4"
    assert learn.startswith("train tiny tasks.py --from latest --epochs ")
    assert train == "train tiny tasks.py"
    # Nothing is recorded yet that earned something: the sentence says what to record.
    assert "Record some first" in hud(learn, code=2)

    hud("eval tasks.py teacher.py --all --group 6")
    job = json.loads(hud("jobs --json"))[0]["id"]
    said = hud(f"{TRAIN} --steps 1")
    assert "All 8 runs of step 1 have reward 0. tiny has random weights" in said
    (learn,) = commands(said, "hud ")
    assert learn.startswith(f"train tiny tasks.py --from {job[:12]} --epochs ")
    assert "learned from 12 runs" in " ".join(hud(learn).split())

    hud(f"{TRAIN} --steps 2 --fresh")
    training = json.loads(hud("jobs --json"))[0]
    assert training["purpose"] == "training"
    assert training["reward"] > 0


@pytest.mark.slow
def test_a_run_that_never_earns_ends_with_the_command_that_helps(hud):
    hud("eval tasks.py teacher.py --all --group 2")
    said = hud(f"models create tiny --tasks tasks.py --from-job latest {SMALL}")
    (learn,) = commands(said, "Next: ")
    said = hud(f"{TRAIN} --steps 20", code=2)
    assert "10 steps in a row had only runs with reward 0" in said
    assert commands(said, "hud ") == [learn]


@pytest.mark.slow
def test_after_a_warm_up_that_was_too_short_the_advice_is_the_same_number_of_epochs(hud):
    hud("eval tasks.py teacher.py --all --group 2")
    (learn,) = commands(hud(f"models create tiny --tasks tasks.py {SMALL}"), "Next: ")
    hud("train tiny tasks.py --from latest --epochs 1")
    assert commands(hud(f"{TRAIN} --steps 1"), "hud ") == [learn]


@pytest.mark.slow
def test_a_policy_that_solves_every_task_already_has_finished(hud, tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS.replace("float(answer == TEAMS[subject])", "1.0"))
    hud(f"models create tiny --tasks tasks.py {SMALL}")
    said = " ".join(hud(f"{TRAIN} --steps 20").split())
    assert "note: tiny has converged: for 10 steps in a row" in said
    assert "Finished at step 10 of 20" in said


@pytest.mark.slow
def test_a_warm_up_without_tasks_says_how_to_train_on(hud):
    hud("eval tasks.py teacher.py --all --group 2")
    job = json.loads(hud("jobs --json"))[0]["id"]
    hud(f"models create tiny --tasks tasks.py {SMALL}")
    said = " ".join(hud(f"train tiny --from {job}").split())
    assert "Usage: hud train tiny TASKS, with TASKS a .py, .json or .jsonl file of tasks" in said
