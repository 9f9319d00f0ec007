"""Output of `hud eval` without a terminal: a row for each tenth of the runs, or the summary alone."""

from __future__ import annotations

import pytest

from hud.cli.main import run
from hud.client import disconnect

ENVIRONMENT = """
from hud import Environment

env = Environment("sums")


@env.template()
async def double(number: int):
    answer = yield f"Twice {number}?"
    if number == 7:
        raise KeyError("seven")
    yield float(answer == str(2 * number))


tasks = [double(number=number) for number in range(40)]
"""
AGENT = "def agent(run):\n    return 2 * run.task.args['number']\n"


@pytest.fixture
def shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    (tmp_path / "agent.py").write_text(AGENT)

    def play(*options):
        arguments = ["eval", "env.py", "agent.py", "--runtime", "local", "--max-concurrent", "1"]
        assert run([*arguments, *options]) == 0
        return capsys.readouterr()

    yield play
    disconnect(tmp_path / "home")


def rows(text):
    return [line.split()[0] for line in text.splitlines() if "/40" in line or "/3 " in line]


def test_a_row_is_printed_for_each_tenth_and_failures_where_they_come(shown):
    text = shown("--all").out
    assert rows(text) == [f"{number}/40" for number in range(4, 44, 4)]
    assert text.count("KeyError: 'seven'") == 2  # Where it comes, and in the summary.


def test_every_run_of_a_small_evaluation_is_printed(shown):
    assert rows(shown("--task-ids", "0,1,2").out) == ["1/3", "2/3", "3/3"]


@pytest.mark.slow
def test_verbose_prints_every_run(shown):
    assert len(rows(shown("--all", "-v").out)) == 40


@pytest.mark.slow
def test_quiet_prints_the_summary_alone(shown):
    text = shown("--all", "--quiet").out
    assert rows(text) == []
    assert "mean reward" in text
