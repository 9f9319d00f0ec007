"""`hud improve`: its plan, and what it refuses."""

import json

import pytest
from tests.cli.test_optimize_command import TASKS, WORDS

from hud.cli.main import run


@pytest.fixture
def tasks(hud_models, tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS % WORDS)
    sizes = ("--hidden", "32", "--layers", "1")
    hud_models("create", "m", "--preset", "tiny", "--tasks", "tasks.py", *sizes)
    return "tasks.py"


def improve(*arguments, capsys):
    capsys.readouterr()
    code = run(["improve", "m", "tasks.py", *arguments])
    return code, capsys.readouterr()


def test_a_dry_run_prints_the_plan_and_plays_nothing(tasks, capsys):
    arguments = ("--budget", "2000rollouts", "--dry-run", "--reflector", "big", "--skip", "imitate")
    code, printed = improve(*arguments, capsys=capsys)
    assert code == 0
    assert "6 training tasks, 4 held-out ones. Nothing is played." in printed.out
    code, printed = improve(*arguments, "--json", capsys=capsys)
    plan = json.loads(printed.out)
    assert plan["measured"] == 6 * 8
    assert [rung["name"] for rung in plan["rungs"]] == ["prompt", "reinforce"]
    assert all(rung["judged"] == 4 * 3 for rung in plan["rungs"])
    assert run(["jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_what_cannot_be_improved_is_one_sentence(tasks, capsys):
    for arguments, sentence in (
        (("--budget", "much"), "'much' is no budget."),
        (("--budget", "5usd"), "--hour-price"),
        (("--budget", "10rollouts"), "does not hold the measurement of 48 rollouts"),
        (("--budget", "1h", "--skip", "dance"), "The improvement: skip"),
        (("--budget", "1h", "--teacher", "no-such"), "no-such"),
        (("--budget", "1h", "--held-out", "tasks.py"), "held-out tasks are training tasks, too"),
    ):
        code, printed = improve(*arguments, capsys=capsys)
        assert (code, sentence in printed.err) == (2, True), printed.err
