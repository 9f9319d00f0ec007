"""What commands print fits 80 columns, in aligned columns, with failures folded by cause."""

import re

import pytest

from hud.cli.main import run
from hud.cli.output import about, fitted, lines_of, number, seconds
from hud.client import disconnect

TASKS = """
import json

from hud import Environment

env = Environment("orders")


@env.template()
async def total(order_number: int, currency: str = "EUR", remark: str = ""):
    answer = yield f"say {order_number}"
    yield 1.0 if answer == "1" else 0.0


@env.template()
async def broken(order_number: int):
    answer = yield f"say {order_number}"
    yield float(json.loads(answer + "}"))


tasks = [total(order_number=n, currency=c, remark="as soon as you can") for n in (1, 2) for c in ("EUR", "USD")]
"""
BROKEN = "from tasks import broken, env\ntasks = [broken(order_number=n) for n in range(3)]\n"
WORDS = """
from hud import Environment

env = Environment("words")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield len(answer.encode()) / 100


tasks = [say(word=word) for word in ("red", "blue")]
"""
AGENT = "async def agent(run):\n    return run.prompt_text.split()[-1]\n"


@pytest.fixture
def hud(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in (("tasks", TASKS), ("wrong", BROKEN), ("words", WORDS), ("agent", AGENT)):
        (tmp_path / f"{name}.py").write_text(text)

    def call(line, code=0, *, most=80):
        capsys.readouterr()
        assert run(line.split()) == code
        lines = capsys.readouterr().out.splitlines()
        # A command to copy is as long as it is.
        shown = [one for one in lines if not one.startswith("  hud ")]
        wide = [one for one in shown if len(one) > most and str(tmp_path) not in one]
        assert not wide, wide
        assert all(one == one.rstrip() for one in lines)
        return lines

    yield call
    disconnect(tmp_path / "home")


def starts(header, names):
    """Return where each right-aligned column of a header ends."""
    return [re.search(rf"\b{re.escape(name)}\b", header).end() for name in names]


@pytest.mark.slow
def test_an_evaluation_is_a_table_with_arguments_and_the_time_left(hud):
    lines = hud("eval tasks.py agent.py:agent --all --group 2 --runtime local")
    header = next(one for one in lines if one.split()[:2] == ["run", "reward"])
    rows = lines[lines.index(header) + 1 :][:8]
    assert header.split() == ["run", "reward", "mean", "time", "left", "task"]
    for column in starts(header, ["run", "reward", "mean", "time", "left"]):
        assert all(one[column - 1] != " " and one[column] == " " for one in rows)
    assert all(re.search(r"  total\([12], '(EUR|USD)', 'as soon.* #[01]$", one) for one in rows)
    assert rows[-1].split()[0] == "8/8"
    assert any(one.startswith("runs         8 (4 tasks)") for one in lines)
    assert any(one.startswith("No signal, never passed: total(order_number=2") for one in lines)


@pytest.mark.slow
def test_identical_failures_are_one_line_with_a_count_and_the_graders_line(hud):
    lines = hud("eval wrong.py agent.py:agent --all --group 2 --runtime local", code=1)
    told = [place for place, one in enumerate(lines) if "JSONDecodeError" in one]
    assert len(told) == 2, "once as it happens, once in the report"
    report = " ".join(" ".join(lines[told[1] : told[1] + 3]).split())
    assert report.startswith("6× grader: Template 'broken' raised JSONDecodeError")
    assert "(tasks.py:18) while grading." in report
    assert "hud trace " in report
    assert sum(one.endswith("grader failed") for one in lines) == 6
    assert "Failed: 6 of 6 runs, 6 without a reward, which enter no mean." in lines

    listed = hud("jobs")
    assert listed[0].split() == ["id", "name", "status", "runs", "failed", "reward", "started"]
    assert listed[1].split()[-6:-2] == ["failed", "6", "6", "–"]
    shown = hud(f"jobs {listed[1].split()[0]}")
    assert shown[2].split()[:3] == ["trace", "task", "#"]
    assert "broken(order_number=0)" in shown[3]
    assert "Failed: 6 of 6 runs." in shown
    assert sum("JSONDecodeError" in one for one in shown) == 1


@pytest.mark.slow
def test_a_training_run_and_its_checkpoints_are_tables(hud):
    sizes = "--hidden 32 --layers 1 --vocab-size 300 --max-context 96"
    hud(f"models create tiny --tasks words.py {sizes}", most=100)
    lines = hud("train tiny words.py --group 4 --tasks-per-step 2 --max-tokens 8 --steps 2")
    header = next(one for one in lines if one.split()[:1] == ["step"])
    assert header.split() == [
        "step",
        "entropy",
        "reward",
        "loss",
        "KL",
        "signal",
        "tok/s",
        "play",
        "learn",
        "left",
    ]
    rows = lines[lines.index(header) + 1 :][:2]
    assert [one.split()[0] for one in rows] == ["1", "2"]
    assert rows[1].endswith("–")
    for column in starts(header, ["step", "reward", "loss", "signal", "left"]):
        assert all(one[column - 1] != " " for one in rows)
    tree = hud("models checkpoints tiny")
    assert tree[1].split() == ["checkpoint", "reward", "loss", "loss", "fn"]
    assert tree[2].startswith("● step-1-")
    assert tree[3].startswith("▶ step-2-")
    for column in starts(tree[1], ["reward", "loss"]):
        assert all(one[column - 1] != " " and one[column] == " " for one in tree[2:])


def test_a_column_is_cut_where_the_console_is_too_narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = lines_of(
        ["id", "name", "runs"], [["1", "n" * 60, "12"]], left=["id", "name"], shrinks="name"
    )
    assert [len(one) for one in lines] == [40, 40]
    assert "n…" in lines[1]
    assert fitted("abc", 3) == "abc"


def test_names_that_differ_at_their_ends_are_cut_in_the_middle(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    rows = [["1", f"{'triage held-out step':<50} {step}", "12"] for step in (10, 20)]
    first, second = lines_of(["id", "name", "runs"], rows, left=["id", "name"], shrinks="name")[1:]
    assert (len(first), len(second)) == (40, 40)
    assert first.startswith("1   triage")
    assert "…" in first
    assert " 10 " in first
    assert " 20 " in second


def test_durations_have_units():
    assert [seconds(value) for value in (0.25, 9.24, 600, 9000)] == [
        "250 ms",
        "9.2 s",
        "10.0 min",
        "2.5 h",
    ]
    shown = [about(value) for value in (0.2, 45, 99, 600, 5900, 9000, None)]
    assert shown == ["0 s", "45 s", "99 s", "10 min", "98 min", "2 h", "–"]
    assert max(map(len, shown)) <= 6


def test_a_long_title_of_a_job_goes_on_in_the_next_line(monkeypatch):
    """`my-environ…ut step 2` hid the environment, the purpose or the step."""
    monkeypatch.setenv("COLUMNS", "40")
    rows = [["0a1b", "my-environment · clerk held-out step 2", "1.000"], ["0c", "tickets", "–"]]
    lines = lines_of(
        ["id", "name", "reward"], rows, left=["id", "name"], shrinks="name", wraps=True
    )
    assert lines == [
        "id    name                        reward",
        "0a1b  my-environment · clerk       1.000",
        "      held-out step 2",
        "0c    tickets                          –",
    ]


def test_a_number_that_rounds_to_zero_has_no_sign():
    assert [number(value, 4) for value in (-0.00001, -0.0, -0.0312)] == [
        "0.0000",
        "0.0000",
        "-0.0312",
    ]
